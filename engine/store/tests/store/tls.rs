//! A private authority is trusted when `--ca-file` names it, and only then.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use hiloop_env::Env;
use hiloop_store::{Store, StoreOptions, StoreUrl};
use hiloop_types::ErrorKind;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::s3_variables;

/// A private authority and a server that it vouches for, made anew: no key lies in the repository.
struct Authority(tempfile::TempDir);

impl Authority {
    fn new() -> Self {
        let this = Self(tempfile::tempdir().unwrap());
        let new_key = ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        let names = ["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"];
        this.openssl(
            &[&new_key[..], &["-x509", "-days", "2", "-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.pem"]].concat(),
        );
        this.openssl(&[&new_key[..], &names, &["-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr"]].concat());
        let sign = ["x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"];
        this.openssl(&[&sign[..], &["-copy_extensions", "copyall", "-out", "server.pem"]].concat());
        this
    }
    fn openssl(&self, arguments: &[&str]) {
        let made = Command::new("openssl").args(arguments).current_dir(self.0.path()).stdin(Stdio::null()).output();
        let made = made.expect("openssl is there: run ./dev setup");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// An HTTPS server of the private authority that has no objects; ends with the test.
fn serve(authority: &Authority) -> u16 {
    let chain = vec![CertificateDer::from_pem_file(authority.file("server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(authority.file("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut tls = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut stream = rustls::Stream::new(&mut tls, &mut stream);
            let mut request = [0; 4096];
            // A client that does not trust us hangs up here.
            if stream.read(&mut request).is_ok_and(|n| n > 0) {
                let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    port
}

async fn open(port: u16, ca_file: Option<PathBuf>) -> hiloop_types::Result<Store> {
    let url = StoreUrl::parse(&format!("s3://bkt?endpoint=https://localhost:{port}")).unwrap();
    Store::open(&url, StoreOptions { ca_file, variables: s3_variables(), ..StoreOptions::default() }, Env::real()).await
}

#[tokio::test]
async fn an_unknown_authority_is_refused_and_the_remedy_named() {
    let error = open(serve(&Authority::new()), None).await.unwrap().get("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("certificate is not trusted") && error.to_string().contains("--ca-file"), "{error}");
}

#[tokio::test]
async fn a_named_authority_is_trusted() {
    let authority = Authority::new();
    let store = open(serve(&authority), Some(authority.file("ca.pem"))).await.unwrap();
    assert!(store.get("k").await.unwrap().is_none());
    // Another authority of the same name is not this one.
    let other = Authority::new();
    let error = open(serve(&authority), Some(other.file("ca.pem"))).await.unwrap().get("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_ca_file_that_holds_none_is_refused_by_name() {
    let authority = Authority::new();
    for (file, kind) in [("missing.pem", ErrorKind::NotFound), ("server.key", ErrorKind::Invalid)] {
        let error = open(1, Some(authority.file(file))).await.err().unwrap();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(file), "{error}");
    }
}
