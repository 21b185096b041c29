//! Operations by request key: each runs in a task of its own, so that it outlives a caller whose time is up, and a repeated call joins it.
//!
//! An operation that failed is forgotten at once: the same key then tries again. One that succeeded is remembered for [`REMEMBERED`]
//! where its effect is one that a second try would not find done (a snapshot, a fork); others are repeated by their own state.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hiloop_types::{Error, Result};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::daemon::Daemon;

/// How long the answer of a finished operation is kept.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Operations in the table, running and remembered.
const TABLE: usize = 1024;

type Answer = Result<Vec<u8>>;

struct Operation {
    /// What was asked, so that a key that is used twice for different things is noticed.
    request: Vec<u8>,
    answer: watch::Receiver<Option<Answer>>,
    /// Monotonic time at which it is forgotten; absent while it runs.
    until: Option<Duration>,
}

/// The table.
#[derive(Clone, Default)]
pub(super) struct Operations(Arc<Mutex<HashMap<String, Operation>>>);

/// Whether the answer of an operation that succeeded is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    Remember,
    Forget,
}

impl Operations {
    /// Runs `work`, or joins the operation that `key` names already. An empty key names nothing.
    pub(super) async fn once<Q: prost::Message, R: prost::Message + Default>(
        &self,
        daemon: &Arc<Daemon>,
        (what, key): (&str, &str),
        request: &Q,
        after: After,
        work: impl Future<Output = Result<R>> + Send + 'static,
    ) -> Result<R> {
        let key = (!key.is_empty()).then(|| format!("{what} {key}"));
        let answer = self.join_or_start(daemon, key, request.encode_to_vec(), after, work)?;
        let bytes = ended(answer).await?;
        R::decode(bytes.as_slice()).map_err(|e| Error::internal(format!("an answer cannot be read again: {e}")))
    }

    fn join_or_start<R: prost::Message>(
        &self,
        daemon: &Arc<Daemon>,
        key: Option<String>,
        request: Vec<u8>,
        after: After,
        work: impl Future<Output = Result<R>> + Send + 'static,
    ) -> Result<watch::Receiver<Option<Answer>>> {
        let mut table = self.0.lock();
        let now = daemon.env.monotonic();
        table.retain(|_, o| o.until.is_none_or(|u| now < u));
        if let Some(there) = key.as_ref().and_then(|k| table.get(k)) {
            if there.request != request {
                return Err(
                    Error::invalid("the request key was used for another request").hint("use a fresh key for each thing that is wanted")
                );
            }
            return Ok(there.answer.clone());
        }
        if table.len() >= TABLE {
            return Err(Error::new(hiloop_types::ErrorKind::Exhausted, "too many operations run or are remembered").hint("try again later"));
        }
        daemon.begin_call()?;
        let (tell, told) = watch::channel(None);
        if let Some(key) = &key {
            table.insert(key.clone(), Operation { request, answer: told.clone(), until: None });
        }
        drop(table);
        let (table, daemon) = (self.0.clone(), daemon.clone());
        tokio::spawn(async move {
            let answer = work.await.map(|r| r.encode_to_vec());
            if let Some(key) = key {
                let mut table = table.lock();
                match table.get_mut(&key) {
                    Some(o) if answer.is_ok() && after == After::Remember => o.until = Some(daemon.env.monotonic() + REMEMBERED),
                    _ => drop(table.remove(&key)),
                }
            }
            // All callers may be gone.
            let _ = tell.send(Some(answer));
            daemon.end_call();
        });
        Ok(told)
    }
}

async fn ended(mut answer: watch::Receiver<Option<Answer>>) -> Answer {
    let gone = |_| Error::internal("the operation ended without an answer");
    let done = answer.wait_for(Option::is_some).await.map_err(gone)?;
    done.clone().unwrap_or_else(|| Err(Error::internal("the operation ended without an answer")))
}
