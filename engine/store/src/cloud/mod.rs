//! S3 and GCS over the crate object_store: how they are opened, and one call each.
//!
//! Repetition is object_store's, with our numbers: at most four more attempts, 50 ms to 2 s apart, none begun after 15 s. Reads and writes
//! have a client each: a read that stalls is given up after 5 s and repeated, while a slow upload is left alone for a minute.

mod error;
mod http;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use hiloop_types::{Error, Result, ResultExt};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{
    BackoffConfig, Certificate, ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, RetryConfig, UpdateVersion,
};

use self::error::{refused_condition, store_error};
use self::http::CountingConnector;
use crate::backend::{Backend, Condition, ObjectInfo, PutOutcome, Version, Versioned};
use crate::stats::Counters;
use crate::store::StoreOptions;
use crate::url::{Endpoint, Place};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A read whose next bytes do not come within this is repeated.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);
/// One attempt of a put, body included.
const PUT_ATTEMPT: Duration = Duration::from_secs(60);
/// Idle connections kept per host.
const IDLE_CONNECTIONS: usize = 64;

/// What of the environment is about credentials and encryption. Whatever says *where* the store is comes from the URL alone.
const AWS_VARIABLES: [&str; 19] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_DEFAULT_REGION",
    "AWS_REGION",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_ENDPOINT_URL_STS",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_METADATA_ENDPOINT",
    "AWS_IMDSV1_FALLBACK",
    "AWS_SKIP_SIGNATURE",
    "AWS_REQUEST_PAYER",
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_SSE_BUCKET_KEY_ENABLED",
];
const GOOGLE_VARIABLES: [(&str, GoogleConfigKey); 5] = [
    ("SERVICE_ACCOUNT", GoogleConfigKey::ServiceAccount),
    ("GOOGLE_SERVICE_ACCOUNT", GoogleConfigKey::ServiceAccount),
    ("GOOGLE_SERVICE_ACCOUNT_PATH", GoogleConfigKey::ServiceAccount),
    ("GOOGLE_SERVICE_ACCOUNT_KEY", GoogleConfigKey::ServiceAccountKey),
    ("GOOGLE_APPLICATION_CREDENTIALS", GoogleConfigKey::ApplicationCredentials),
];

/// A bucket.
pub(crate) struct CloudBackend {
    reads: Arc<dyn ObjectStore>,
    writes: Arc<dyn ObjectStore>,
}

/// Opens a bucket without a request.
pub(crate) async fn open(place: &Place, options: &StoreOptions, counters: Arc<Counters>) -> Result<CloudBackend> {
    let base = client_options(place, options).await?;
    let reads = base.clone().with_read_timeout(STALL_TIMEOUT).with_timeout(options.read_deadline);
    let build = |client: ClientOptions| build(place, client, &variables(options), CountingConnector::new(counters.clone()));
    Ok(CloudBackend { reads: build(reads)?, writes: build(base.with_timeout(PUT_ATTEMPT))? })
}

fn variables(options: &StoreOptions) -> impl Fn(&str) -> Option<String> {
    let given: Option<BTreeMap<String, String>> = options.variables.clone();
    move |name| match &given {
        Some(map) => map.get(name).cloned(),
        None => std::env::var(name).ok(),
    }
}

async fn client_options(place: &Place, options: &StoreOptions) -> Result<ClientOptions> {
    let mut client = ClientOptions::new().with_connect_timeout(CONNECT_TIMEOUT).with_pool_max_idle_per_host(IDLE_CONNECTIONS);
    if let Some(path) = &options.ca_file {
        let pem = tokio::fs::read(path).await.at(path.display())?;
        let bad = |why: String| Error::invalid(why).at(path.display()).hint("--ca-file names a file of PEM certificates");
        let certificates = Certificate::from_pem_bundle(&pem).map_err(|e| bad(error::root_cause(&e)))?;
        if certificates.is_empty() {
            return Err(bad("no certificate in the CA file".into()));
        }
        for certificate in certificates {
            client = client.with_root_certificate(certificate);
        }
    }
    let plain = match place {
        Place::S3 { endpoint, .. } | Place::Gs { endpoint, .. } => endpoint.as_ref().is_some_and(|e| e.plain),
        Place::File { .. } => false,
    };
    Ok(client.with_allow_http(plain))
}

fn build(
    place: &Place,
    client: ClientOptions,
    variable: &impl Fn(&str) -> Option<String>,
    connector: CountingConnector,
) -> Result<Arc<dyn ObjectStore>> {
    let retry = RetryConfig {
        max_retries: 6,
        retry_timeout: Duration::from_secs(15),
        backoff: BackoffConfig { init_backoff: Duration::from_millis(50), max_backoff: Duration::from_secs(2), base: 2.0 },
    };
    // An empty variable is one that is not set.
    let set = |name: &str| variable(name).filter(|v| !v.is_empty());
    let unusable =
        |e: object_store::Error| Error::invalid(format!("the store's credentials or settings cannot be used: {}", error::root_cause(&e)));
    match place {
        Place::S3 { bucket, endpoint, region, path_style } => {
            let mut b = AmazonS3Builder::new();
            for name in AWS_VARIABLES {
                if let Some(value) = set(name) {
                    let key: AmazonS3ConfigKey = name.to_ascii_lowercase().parse().map_err(unusable)?;
                    b = b.with_config(key, value);
                }
            }
            if let Some(region) = region {
                b = b.with_region(region);
            }
            let path_style = path_style.unwrap_or(endpoint.is_some() || bucket.contains('.'));
            if let Some(endpoint) = endpoint {
                b = b.with_endpoint(if path_style { endpoint.url.clone() } else { virtual_hosted(endpoint, bucket) });
            }
            let b = b.with_bucket_name(bucket).with_virtual_hosted_style_request(!path_style);
            // One DELETE per object: some compatible stores lack the bulk call, and we delete one at a time.
            let b = b.with_disable_bulk_delete(true).with_client_options(client).with_retry(retry).with_http_connector(connector);
            Ok(Arc::new(b.build().map_err(unusable)?))
        }
        Place::Gs { bucket, endpoint } => {
            let mut b = GoogleCloudStorageBuilder::new();
            for (name, key) in GOOGLE_VARIABLES {
                if let Some(value) = set(name) {
                    b = b.with_config(key, value);
                }
            }
            if let Some(endpoint) = endpoint {
                b = b.with_base_url(&endpoint.url);
            }
            let b = b.with_bucket_name(bucket).with_client_options(client).with_retry(retry).with_http_connector(connector);
            Ok(Arc::new(b.build().map_err(unusable)?))
        }
        Place::File { .. } => Err(Error::internal("a directory is no bucket")),
    }
}

/// `https://bucket.host` of `https://host`: object_store wants the bucket in the endpoint then.
fn virtual_hosted(endpoint: &Endpoint, bucket: &str) -> String {
    match endpoint.url.split_once("://") {
        Some((scheme, rest)) => format!("{scheme}://{bucket}.{rest}"),
        None => endpoint.url.clone(),
    }
}

fn path(key: &str) -> Result<Path> {
    Path::parse(key).map_err(|e| Error::invalid(e.to_string()))
}

fn version(e_tag: Option<String>, generation: Option<String>) -> Result<Version> {
    match (&e_tag, &generation) {
        (None, None) => Err(Error::corrupt("the store gave neither an ETag nor a generation").hint("hiloop needs a store with versions")),
        _ => Ok(Version { e_tag, generation }),
    }
}

fn info(meta: ObjectMeta) -> ObjectInfo {
    ObjectInfo {
        size: meta.size,
        modified: Duration::from_millis(meta.last_modified.timestamp_millis().max(0) as u64),
        version: version(meta.e_tag, meta.version).ok(),
        key: meta.location.into(),
    }
}

/// `None` for "no such object", an error for everything else that is one.
fn found<T>(result: object_store::Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(object_store::Error::NotFound { source, .. }) if !error::names_bucket(&*source) => Ok(None),
        Err(e) => Err(store_error(&e)),
    }
}

#[async_trait]
impl Backend for CloudBackend {
    async fn get(&self, key: &str) -> Result<Option<Versioned>> {
        let Some(answer) = found(self.reads.get_opts(&path(key)?, GetOptions::default()).await)? else { return Ok(None) };
        let meta = answer.meta.clone();
        let bytes = answer.bytes().await.map_err(|e| store_error(&e))?;
        if bytes.len() as u64 != meta.size {
            return Err(Error::corrupt(format!("{} bytes came of {} announced", bytes.len(), meta.size)));
        }
        Ok(Some(Versioned { bytes, version: version(meta.e_tag, meta.version)? }))
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Option<Bytes>> {
        let options = GetOptions { range: Some(GetRange::Bounded(offset..offset.saturating_add(len))), ..GetOptions::default() };
        let Some(answer) = found(self.reads.get_opts(&path(key)?, options).await)? else { return Ok(None) };
        Ok(Some(answer.bytes().await.map_err(|e| store_error(&e))?))
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        Ok(found(self.reads.get_opts(&path(key)?, options).await)?.map(|answer| info(answer.meta)))
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<PutOutcome> {
        let conditional = condition != Condition::Always;
        let mode = match condition {
            Condition::Always => PutMode::Overwrite,
            Condition::Absent => PutMode::Create,
            Condition::Version(v) => PutMode::Update(UpdateVersion { e_tag: v.e_tag, version: v.generation }),
        };
        match self.writes.put_opts(&path(key)?, PutPayload::from(bytes), PutOptions { mode, ..PutOptions::default() }).await {
            Ok(done) => Ok(PutOutcome::Done(version(done.e_tag, done.version)?)),
            Err(e) if conditional && refused_condition(&e) => Ok(PutOutcome::Lost),
            Err(e) => {
                let error = store_error(&e);
                // A refusal for good (403, 400) left nothing behind. Everything else may have, or an earlier attempt of this call may.
                if conditional && !error::is_refusal(&e) { Ok(PutOutcome::Ambiguous(error)) } else { Err(error) }
            }
        }
    }

    async fn delete(&self, key: &str) -> Result<bool> {
        Ok(found(self.writes.delete(&path(key)?).await)?.is_some())
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<ObjectInfo>> {
        match path(prefix) {
            Ok(prefix) => self.reads.list(Some(&prefix)).map_ok(info).map_err(|e| store_error(&e)).boxed(),
            Err(error) => futures::stream::once(async { Err(error) }).boxed(),
        }
    }
}
