//! What a world saw: broken promises, and how often it came across what it is there for.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::executor::Executor;

/// Gathers what happens; also part of the trace.
pub struct Report {
    exec: Executor,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    violations: Vec<String>,
    counts: BTreeMap<&'static str, u64>,
}

impl Report {
    /// An empty report.
    pub fn new(exec: Executor) -> Self {
        Self { exec, inner: Mutex::default() }
    }
    /// Notes a broken promise.
    pub fn violation(&self, what: String) {
        self.exec.note(|| format!("VIOLATION {what}"));
        self.inner.lock().violations.push(what);
    }
    /// The first broken promise.
    pub fn first(&self) -> Option<String> {
        self.inner.lock().violations.first().cloned()
    }
    /// True once a promise was broken: the world need not go on.
    pub fn is_broken(&self) -> bool {
        !self.inner.lock().violations.is_empty()
    }
    /// Counts something that happened.
    pub fn count(&self, what: &'static str) {
        *self.inner.lock().counts.entry(what).or_default() += 1;
    }
    /// What happened how often.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.inner.lock().counts.clone()
    }
}
