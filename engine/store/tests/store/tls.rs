//! A private authority is trusted when `--ca-file` names it, and only then.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;

use hiloop_env::Env;
use hiloop_store::{Store, StoreOptions, StoreUrl};
use hiloop_types::ErrorKind;

use crate::authority::Authority;
use crate::s3_variables;

/// An HTTPS server of the private authority that has no objects; ends with the test.
fn serve(authority: &Authority) -> u16 {
    let config = Arc::new(authority.server());
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
