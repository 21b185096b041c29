//! Counts how many reads of a store waited for each other: what an operation costs is rounds of the store before it is requests.
//!
//! A read belongs to the round behind the last one that had ended when it began, so reads side by side share a round however many they are.
//! Each read yields to everything else that can run before it is made: on a runtime of one thread the count does not depend on the
//! machine.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use hiloop_types::Result;
use parking_lot::Mutex;

use crate::backend::{Backend, Condition, ObjectInfo, PutOutcome, Versioned};

/// How often a read yields: more often than any chain of wake-ups within one round is long.
const YIELDS: usize = 64;

/// One read of an object or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// Which round it belongs to, from 1.
    pub round: u64,
    /// The key, with the store's prefix.
    pub key: String,
    /// Bytes that it answered.
    pub bytes: u64,
}

#[derive(Default)]
struct State {
    /// The last round of which a read has ended.
    ended: u64,
    reads: Vec<Read>,
}

/// Counts the reads of the stores that it wraps. Clones share the count.
#[derive(Clone, Default)]
pub struct Rounds(Arc<Mutex<State>>);

impl Rounds {
    /// A backend that behaves like `inner` and is counted.
    pub fn wrap(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(Counted { inner, rounds: self.clone() })
    }

    /// Begins anew; nothing should be under way.
    pub fn reset(&self) {
        *self.0.lock() = State::default();
    }

    /// All reads that ended, in the order in which they did.
    pub fn reads(&self) -> Vec<Read> {
        self.0.lock().reads.clone()
    }

    async fn read<T>(&self, key: &str, bytes: impl Fn(&T) -> u64, read: impl Future<Output = Result<T>>) -> Result<T> {
        let round = self.0.lock().ended + 1;
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
        let answer = read.await;
        let mut state = self.0.lock();
        state.ended = state.ended.max(round);
        state.reads.push(Read { round, key: key.to_owned(), bytes: answer.as_ref().map_or(0, &bytes) });
        answer
    }
}

struct Counted {
    inner: Arc<dyn Backend>,
    rounds: Rounds,
}

#[async_trait]
impl Backend for Counted {
    async fn get(&self, key: &str) -> Result<Option<Versioned>> {
        let bytes = |v: &Option<Versioned>| v.as_ref().map_or(0, |v| v.bytes.len() as u64);
        self.rounds.read(key, bytes, self.inner.get(key)).await
    }
    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Option<Bytes>> {
        let bytes = |b: &Option<Bytes>| b.as_ref().map_or(0, |b| b.len() as u64);
        self.rounds.read(key, bytes, self.inner.get_range(key, offset, len)).await
    }
    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>> {
        self.rounds.read(key, |_| 0, self.inner.head(key)).await
    }
    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<PutOutcome> {
        self.inner.put(key, bytes, condition).await
    }
    async fn delete(&self, key: &str) -> Result<bool> {
        self.inner.delete(key).await
    }
    fn list(&self, prefix: &str) -> BoxStream<'static, Result<ObjectInfo>> {
        self.inner.list(prefix)
    }
}

#[cfg(test)]
mod tests {
    use hiloop_env::Env;

    use super::*;
    use crate::Store;

    #[tokio::test]
    async fn reads_side_by_side_are_one_round_and_those_behind_each_other_are_not() {
        let rounds = Rounds::default();
        let store = Store::memory(Env::simulated(1).0).wrapped(|b| rounds.wrap(b));
        store.put("a", Bytes::from_static(b"abc")).await.unwrap();
        let (x, y) = futures::join!(store.get("a"), store.get_range("a", 1, 1));
        assert!(x.is_ok() && y.is_ok());
        store.head("a").await.unwrap();
        // One side goes on while the other still waits for its first.
        futures::join!(async { store.get("a").await.unwrap() }, async {
            store.get("a").await.unwrap();
            store.get("b").await.unwrap()
        });
        let seen: Vec<_> = rounds.reads().into_iter().map(|r| (r.round, r.bytes)).collect();
        assert_eq!(seen, [(1, 3), (1, 1), (2, 0), (3, 3), (3, 3), (4, 0)]);
        rounds.reset();
        store.get("a").await.unwrap();
        assert_eq!(rounds.reads(), [Read { round: 1, key: "a".into(), bytes: 3 }]);
    }
}
