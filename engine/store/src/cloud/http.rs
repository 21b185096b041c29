//! Counts the HTTP requests that a store really sends: the repetitions inside object_store are visible nowhere else.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector};

use crate::stats::Counters;

/// Makes reqwest clients that count.
pub(super) struct CountingConnector {
    inner: ReqwestConnector,
    counters: Arc<Counters>,
}

impl CountingConnector {
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        Self { inner: ReqwestConnector::default(), counters }
    }
}

impl std::fmt::Debug for CountingConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CountingConnector")
    }
}

impl HttpConnector for CountingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Counting { inner: self.inner.connect(options)?, counters: self.counters.clone() }))
    }
}

struct Counting {
    inner: HttpClient,
    counters: Arc<Counters>,
}

impl std::fmt::Debug for Counting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Counting")
    }
}

#[async_trait]
impl HttpService for Counting {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.counters.http_requests.fetch_add(1, Ordering::Relaxed);
        let result = self.inner.execute(request).await;
        let failed = match &result {
            Ok(response) => response.status().is_server_error() || matches!(response.status().as_u16(), 408 | 429),
            Err(_) => true,
        };
        if failed {
            self.counters.http_failures.fetch_add(1, Ordering::Relaxed);
        }
        result
    }
}
