//! Conditional writes with an answer: reads back whenever the store's own answer leaves open who won.
//!
//! A client library that repeats a request whose answer was lost meets its own first attempt and is told "lost"; a server that sees two
//! requests at once may tell both "conflict" and keep neither. So after everything but a plain yes the object is read, and `is_mine`
//! says whether these are the caller's bytes. `is_mine` must look at something only this attempt wrote (session and nonce,
//! `protocols.md` 3.2), never at content that another writer could produce as well.

use std::time::Duration;

use bytes::Bytes;
use hiloop_types::{Error, Result};

use crate::backend::{Version, Versioned};
use crate::store::{CreateOutcome, Store, SwapOutcome};

/// Attempts before an unsettled write is given up as unavailable.
const ATTEMPTS: u32 = 4;
/// Wait before the second attempt; doubles.
const PAUSE: Duration = Duration::from_millis(50);

/// Who won a conditional write.
#[derive(Clone, Debug)]
pub enum Settled {
    /// The caller; this is the version it wrote.
    Won(Version),
    /// Somebody else; this is what is there (`None`: the object to be swapped is gone).
    Lost(Option<Versioned>),
}

impl Store {
    /// Writes the object if there is none, and finds out who won.
    ///
    /// # Errors
    /// `Unavailable` when it cannot be found out now: the write may have taken effect, or may yet. Else as [`Store::create`].
    pub async fn create_settled(&self, key: &str, bytes: Bytes, is_mine: impl Fn(&Bytes) -> bool) -> Result<Settled> {
        let mut last = None;
        for attempt in 0..ATTEMPTS {
            self.pause(attempt).await;
            match self.create(key, bytes.clone()).await? {
                CreateOutcome::Done(version) => return Ok(Settled::Won(version)),
                CreateOutcome::Lost => {}
                CreateOutcome::Ambiguous(error) => last = Some(error),
            }
            if let Some(there) = self.get(key).await? {
                return Ok(if is_mine(&there.bytes) { Settled::Won(there.version) } else { Settled::Lost(Some(there)) });
            }
        }
        Err(unsettled(key, last))
    }

    /// Replaces the object if it still is `version`, and finds out who won.
    ///
    /// # Errors
    /// As [`Store::create_settled`].
    pub async fn swap_settled(&self, key: &str, version: &Version, bytes: Bytes, is_mine: impl Fn(&Bytes) -> bool) -> Result<Settled> {
        let mut last = None;
        for attempt in 0..ATTEMPTS {
            self.pause(attempt).await;
            match self.swap(key, version, bytes.clone()).await? {
                SwapOutcome::Done(version) => return Ok(Settled::Won(version)),
                SwapOutcome::Lost => {}
                SwapOutcome::Ambiguous(error) => last = Some(error),
            }
            match self.get(key).await? {
                Some(there) if is_mine(&there.bytes) => return Ok(Settled::Won(there.version)),
                Some(there) if there.version == *version => {}
                there => return Ok(Settled::Lost(there)),
            }
        }
        Err(unsettled(key, last))
    }

    async fn pause(&self, attempt: u32) {
        if attempt > 0 {
            self.env().sleep(PAUSE * (1 << (attempt - 1))).await;
        }
    }
}

fn unsettled(key: &str, last: Option<Error>) -> Error {
    let why = last.map_or_else(|| "the store refuses it though nobody else wrote".into(), |e| e.to_string());
    Error::unavailable(format!("a conditional write stays unsettled: {why}")).at(key)
}
