//! A real S3 server (versitygw, installed by `./dev setup`) against the suite that every backend must pass.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use hiloop_env::Env;
use hiloop_store::{Store, StoreOptions, StoreUrl, conformance};
use hiloop_types::ErrorKind;

struct Gateway {
    child: Child,
    port: u16,
    _objects: tempfile::TempDir,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn binary() -> PathBuf {
    let path = std::env::var_os("HILOOP_VERSITYGW").map(PathBuf::from);
    let path = path.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/hiloop/bin/versitygw"));
    assert!(path.is_file(), "no S3 server at {}: run ./dev setup, or name one in HILOOP_VERSITYGW", path.display());
    path
}

impl Gateway {
    fn start() -> Self {
        let objects = tempfile::tempdir().unwrap();
        std::fs::create_dir(objects.path().join("bkt")).unwrap();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let mut child = Command::new(binary())
            .args(["-q", "--access", "test-key", "--secret", "hunter2-secret", "--port", &format!("127.0.0.1:{port}"), "posix"])
            .arg(objects.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert_eq!(child.try_wait().unwrap(), None, "versitygw ended before it answered");
            std::thread::yield_now();
        }
        Self { child, port, _objects: objects }
    }

    async fn open(&self, bucket: &str, secret: &str) -> Store {
        let url = format!("s3://{bucket}?prefix=some/where&endpoint=http://127.0.0.1:{}&disable_https=true", self.port);
        let variables = [("AWS_ACCESS_KEY_ID", "test-key"), ("AWS_SECRET_ACCESS_KEY", secret)].map(|(k, v)| (k.into(), v.into()));
        let options = StoreOptions { variables: Some(variables.into()), ..StoreOptions::default() };
        Store::open(&StoreUrl::parse(&url).unwrap(), options, Env::real()).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_s3_server_conforms_and_refuses_in_our_words() {
    let gateway = Gateway::start();
    let store = gateway.open("bkt", "hunter2-secret").await;
    store.probe().await.unwrap();
    assert!(store.list("").await.unwrap().is_empty(), "the probe cleans up");
    conformance::run(&store).await;
    assert_eq!(store.stats().http_failures, 0);

    let error = gateway.open("bkt", "wrong").await.get("heads/x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("get heads/x") && !error.to_string().contains("test-key"), "{error}");
    let error = gateway.open("nowhere", "hunter2-secret").await.list("").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("bucket"), "{error}");
}
