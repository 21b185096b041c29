//! The probe accepts exact stores and finds each way of being inexact, also the one that only shows under a race.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use hiloop_env::Env;
use hiloop_store::faults::{Fault, Faults, Rule};
use hiloop_store::{
    Backend, Call, Condition, CreateOutcome, MemoryBackend, ObjectInfo, PutOutcome, Store, StoreOptions, SwapOutcome, Versioned,
};
use hiloop_types::{ErrorKind, Result};

use crate::directory_store;

#[tokio::test(flavor = "multi_thread")]
async fn exact_stores_pass_and_are_left_clean() {
    let dir = tempfile::tempdir().unwrap();
    for store in [Store::memory(Env::real()), directory_store(dir.path()).await] {
        store.probe().await.unwrap();
        assert!(store.list("").await.unwrap().is_empty());
        assert!(store.stats().requests() < 80, "{:?}", store.stats());
    }
}

/// Checks the condition, then writes, and lets others in between: right for one writer after the other (Adobe S3Mock, s3proxy).
struct Racy(MemoryBackend);

#[async_trait]
impl Backend for Racy {
    async fn get(&self, key: &str) -> Result<Option<Versioned>> {
        self.0.get(key).await
    }
    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Option<Bytes>> {
        self.0.get_range(key, offset, len).await
    }
    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>> {
        self.0.head(key).await
    }
    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<PutOutcome> {
        let there = self.0.get(key).await?.map(|v| v.version);
        let holds = match &condition {
            Condition::Always => true,
            Condition::Absent => there.is_none(),
            Condition::Version(v) => there.as_ref() == Some(v),
        };
        tokio::task::yield_now().await;
        if holds { self.0.put(key, bytes, Condition::Always).await } else { Ok(PutOutcome::Lost) }
    }
    async fn delete(&self, key: &str) -> Result<bool> {
        self.0.delete(key).await
    }
    fn list(&self, prefix: &str) -> BoxStream<'static, Result<ObjectInfo>> {
        self.0.list(prefix)
    }
}

#[tokio::test]
async fn a_store_that_loses_races_is_found_though_it_passes_in_sequence() {
    let store = Store::from_parts(Arc::new(Racy(MemoryBackend::new(Env::real()))), StoreOptions::default(), Env::real());
    let CreateOutcome::Done(first) = store.create("k", Bytes::from_static(b"1")).await.unwrap() else { panic!() };
    assert!(matches!(store.create("k", Bytes::from_static(b"2")).await.unwrap(), CreateOutcome::Lost));
    store.swap("k", &first, Bytes::from_static(b"3")).await.unwrap();
    assert!(matches!(store.swap("k", &first, Bytes::from_static(b"4")).await.unwrap(), SwapOutcome::Lost));
    let error = store.probe().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("racing creates won"), "{error}");
    assert_eq!(store.list("probe").await.unwrap(), [], "cleaned up all the same");
}

#[tokio::test]
async fn each_ignored_condition_is_named() {
    for (call, passed, named) in [(Call::Create, 8, "create over an existing object"), (Call::Swap, 8, "version that is gone")] {
        let faults = Faults::default();
        let store = Store::memory(Env::real()).wrapped(|backend| faults.wrap(backend));
        let hit = faults.inject(Rule::on(Fault::Unconditional).call(call).after(passed));
        let error = store.probe().await.unwrap_err();
        assert_eq!((error.kind(), hit.fired()), (ErrorKind::Invalid, 1));
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[tokio::test]
async fn a_refused_or_absent_store_is_not_called_inexact() {
    for kind in [ErrorKind::Denied, ErrorKind::Unavailable] {
        let faults = Faults::default();
        let store = Store::memory(Env::real()).wrapped(|backend| faults.wrap(backend));
        faults.inject(Rule::on(Fault::Before(kind)).call(Call::Create).times(8));
        assert_eq!(store.probe().await.unwrap_err().kind(), kind);
    }
}

/// A bad day: requests that break off before or after they were served.
#[tokio::test]
async fn a_store_that_drops_some_requests_is_judged_by_the_others() {
    for call in [Call::Create, Call::Swap] {
        for fault in [Fault::Before(ErrorKind::Unavailable), Fault::After(ErrorKind::Unavailable)] {
            let faults = Faults::default();
            let store = Store::memory(Env::real()).wrapped(|backend| faults.wrap(backend));
            let hit = faults.inject(Rule::on(fault).call(call).times(7));
            store.probe().await.unwrap();
            assert_eq!(hit.fired(), 7, "{call:?} {fault:?}");
        }
        // What is clear still convicts.
        let faults = Faults::default();
        let store = Store::memory(Env::real()).wrapped(|backend| faults.wrap(backend));
        faults.inject(Rule::on(Fault::Before(ErrorKind::Unavailable)).call(call).times(4));
        faults.inject(Rule::on(Fault::Unconditional).call(call).after(4).times(4));
        assert_eq!(store.probe().await.unwrap_err().kind(), ErrorKind::Invalid, "{call:?}");
    }
}
