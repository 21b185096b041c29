//! A store in memory: exact, ordered and without a clock of its own, for tests and the simulator.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use hiloop_env::Env;
use hiloop_types::{Error, Result};
use parking_lot::Mutex;

use crate::backend::{Backend, Condition, ObjectInfo, PutOutcome, Version, Versioned};
use crate::key::is_below;

/// Objects in a map. Every call is atomic; times come from the [`Env`].
pub struct MemoryBackend {
    env: Env,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Object>,
    writes: u64,
}

#[derive(Clone)]
struct Object {
    bytes: Bytes,
    version: Version,
    modified: Duration,
}

impl Object {
    fn info(&self, key: &str) -> ObjectInfo {
        ObjectInfo { key: key.to_owned(), size: self.bytes.len() as u64, modified: self.modified, version: Some(self.version.clone()) }
    }
}

impl MemoryBackend {
    /// An empty store.
    pub fn new(env: Env) -> Self {
        Self { env, state: Mutex::default() }
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    async fn get(&self, key: &str) -> Result<Option<Versioned>> {
        Ok(self.state.lock().objects.get(key).map(|o| Versioned { bytes: o.bytes.clone(), version: o.version.clone() }))
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Option<Bytes>> {
        let state = self.state.lock();
        let Some(object) = state.objects.get(key) else { return Ok(None) };
        match offset.checked_add(len) {
            Some(end) if end <= object.bytes.len() as u64 => Ok(Some(object.bytes.slice(offset as usize..end as usize))),
            _ => Err(Error::corrupt(format!("the object has {} bytes, {len} at {offset} were asked for", object.bytes.len()))),
        }
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>> {
        Ok(self.state.lock().objects.get(key).map(|o| o.info(key)))
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<PutOutcome> {
        let mut state = self.state.lock();
        let there = state.objects.get(key).map(|o| &o.version);
        let holds = match (&condition, there) {
            (Condition::Always, _) | (Condition::Absent, None) => true,
            (Condition::Absent, Some(_)) | (Condition::Version(_), None) => false,
            (Condition::Version(wanted), Some(v)) => wanted == v,
        };
        if !holds {
            return Ok(PutOutcome::Lost);
        }
        state.writes += 1;
        let version = Version::from_tag(format!("\"{}\"", state.writes));
        let object = Object { bytes, version: version.clone(), modified: self.env.wall() };
        state.objects.insert(key.to_owned(), object);
        Ok(PutOutcome::Done(version))
    }

    async fn delete(&self, key: &str) -> Result<bool> {
        Ok(self.state.lock().objects.remove(key).is_some())
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<ObjectInfo>> {
        let state = self.state.lock();
        let from = state.objects.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let found: Vec<_> =
            from.take_while(|(k, _)| k.starts_with(prefix)).filter(|(k, _)| is_below(prefix, k)).map(|(k, o)| Ok(o.info(k))).collect();
        stream::iter(found).boxed()
    }
}
