//! The raw client: the same store through the same shaper with nothing of ours on top, which cold reads and replication are measured by.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use hiloop_env::Env;
use hiloop_store::{Store, StoreOptions, StoreUrl};
use hiloop_types::{Error, Result};

use crate::store::Store as Kept;

/// Requests in flight.
const STREAMS: usize = 16;
/// Bytes of a request.
const PART: u64 = 8 << 20;

/// A client of a store.
pub struct Raw {
    runtime: tokio::runtime::Runtime,
    store: Store,
}

impl Raw {
    /// Opens a store.
    ///
    /// # Errors
    /// As the store.
    pub fn open(kept: &Kept, env: &Env) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|e| Error::io("tokio", &e))?;
        let options = StoreOptions { variables: Some(kept.vars.iter().cloned().collect()), ..StoreOptions::default() };
        let store = runtime.block_on(Store::open(&StoreUrl::parse(&kept.url)?, options, env.clone()))?;
        Ok(Self { runtime, store })
    }

    /// Reads everything below `prefix` in ranges, as many at once as help; returns the bytes.
    ///
    /// # Errors
    /// As the store.
    pub fn read(&self, prefix: &str) -> Result<u64> {
        self.runtime.block_on(async {
            let objects = self.store.list(prefix).await?;
            let ranges =
                objects.iter().flat_map(|o| (0..o.size.div_ceil(PART)).map(|n| (o.key.clone(), n * PART, PART.min(o.size - n * PART))));
            let reads = futures::stream::iter(ranges.collect::<Vec<_>>()).map(|(key, offset, len)| async move {
                let got = self.store.get_range(&key, offset, len).await?;
                got.map(|bytes| bytes.len() as u64).ok_or_else(|| Error::not_found("an object went away").at(key))
            });
            reads.buffer_unordered(STREAMS).try_fold(0, |sum, n| async move { Ok(sum + n) }).await
        })
    }

    /// Puts `count` objects of 8 MiB of `bytes` below `raw/`, as many at once as help.
    ///
    /// # Errors
    /// As the store.
    pub fn write(&self, count: u32, bytes: &[u8]) -> Result<()> {
        let part = Bytes::copy_from_slice(&bytes[..bytes.len().min(PART as usize)]);
        self.runtime.block_on(async {
            let puts = futures::stream::iter(0..count).map(|n| {
                let part = part.clone();
                async move { self.store.put(&format!("raw/{n}"), part).await }
            });
            puts.buffer_unordered(STREAMS).try_collect::<Vec<_>>().await.map(drop)
        })
    }
}
