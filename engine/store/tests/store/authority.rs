//! TLS for tests; those of other crates include this file, too.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A private authority and a server that it vouches for, made anew: no key lies in the repository.
pub struct Authority(tempfile::TempDir);

impl Authority {
    pub fn new() -> Self {
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
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    /// What a server of this authority serves with.
    pub fn server(&self) -> ServerConfig {
        let chain = vec![CertificateDer::from_pem_file(self.file("server.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(self.file("server.key")).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        config.with_no_client_auth().with_single_cert(chain, key).unwrap()
    }
}
