//! Healthy, or read-only with the first reason: there is no way back but reopening.

use std::sync::atomic::{AtomicBool, Ordering};

use hiloop_types::{Error, Result};
use parking_lot::Mutex;

/// Whether the journal accepts records.
#[derive(Clone, Debug)]
pub enum State {
    /// Appends and commits work.
    Healthy,
    /// Nothing more is accepted; the reason is the first failure. What was flushed stays readable and may be shipped.
    ReadOnly(Error),
}

#[derive(Default)]
pub(crate) struct Health {
    failed: AtomicBool,
    reason: Mutex<Option<Error>>,
}

impl Health {
    /// Refuses when read-only, with kind `Closed` and the reason in words.
    pub(crate) fn check(&self) -> Result<()> {
        match self.failure() {
            None => Ok(()),
            Some(reason) => {
                Err(Error::closed(format!("journal is read-only: {reason}")).hint("free or replace the node disk, then reopen"))
            }
        }
    }
    /// The first failure itself: what a waiter for a flush gets.
    pub(crate) fn failure(&self) -> Option<Error> {
        if self.failed.load(Ordering::Acquire) { self.reason.lock().clone() } else { None }
    }
    /// Makes the journal read-only; the first reason stays.
    pub(crate) fn fail(&self, error: &Error) {
        let mut reason = self.reason.lock();
        if reason.is_none() {
            tracing::error!(%error, "journal becomes read-only");
            *reason = Some(error.clone());
        }
        self.failed.store(true, Ordering::Release);
    }
    pub(crate) fn state(&self) -> State {
        self.failure().map_or(State::Healthy, State::ReadOnly)
    }
}
