//! The store rim from outside: every backend against one suite, faults and deadlines, answers of servers, TLS.
#![allow(clippy::disallowed_methods, reason = "tests drive tasks of their own")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod answers;
mod authority;
mod directory;
mod faults;
mod gcs;
mod probe;
mod tls;

use std::collections::BTreeMap;
use std::path::Path;

use hiloop_env::Env;
use hiloop_store::{Store, StoreOptions, StoreUrl, conformance};

async fn directory_store(dir: &Path) -> Store {
    Store::open(&StoreUrl::file(dir).unwrap(), StoreOptions::default(), Env::real()).await.unwrap()
}

/// Credentials of nobody, so that no test looks at the machine's.
fn s3_variables() -> Option<BTreeMap<String, String>> {
    Some([("AWS_ACCESS_KEY_ID", "KEYID"), ("AWS_SECRET_ACCESS_KEY", "hunter2")].map(|(k, v)| (k.into(), v.into())).into())
}

#[tokio::test]
async fn memory_conforms() {
    conformance::run(&Store::memory(Env::simulated(1).0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::run(&directory_store(dir.path()).await).await;
}
