//! GCS by a stand-in: the part of its XML API that object_store speaks (generations, ranges, paged listings) over one map with a lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Query};
use axum::http::{HeaderMap, Method, Response, Uri};
use bytes::Bytes;
use hiloop_env::Env;
use hiloop_store::{Store, StoreOptions, StoreUrl, conformance};

#[derive(Default)]
struct Bucket {
    objects: BTreeMap<String, (u64, Bytes)>,
    generation: u64,
}

fn percent_decode(text: &str) -> String {
    let mut out = Vec::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            out.push(u8::from_str_radix(&text[at + 1..at + 3], 16).unwrap());
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(out).unwrap()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn plain(status: u16, code: &str) -> Response<Body> {
    Response::builder().status(status).body(Body::from(format!("<Error><Code>{code}</Code></Error>"))).unwrap()
}

impl Bucket {
    fn serve(&mut self, method: &Method, key: &str, query: &HashMap<String, String>, headers: &HeaderMap, body: Bytes) -> Response<Body> {
        let header = |name: &str| headers.get(name).map(|v| v.to_str().unwrap().to_owned());
        match method.as_str() {
            "PUT" => {
                let there = self.objects.get(key).map_or(0, |(generation, _)| *generation);
                if header("x-goog-if-generation-match").is_some_and(|wanted| wanted != there.to_string()) {
                    return plain(412, "PreconditionFailed");
                }
                self.generation += 1;
                self.objects.insert(key.to_owned(), (self.generation, body));
                self.described(200, self.generation).body(Body::empty()).unwrap()
            }
            "GET" if key.is_empty() => self.list(query),
            "GET" | "HEAD" => {
                let Some((generation, bytes)) = self.objects.get(key) else { return plain(404, "NoSuchKey") };
                let response = self.described(200, *generation);
                let Some(range) = header("range") else { return response.body(Body::from(bytes.clone())).unwrap() };
                let (from, to) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
                let (from, to): (u64, u64) = (from.parse().unwrap(), to.parse().unwrap());
                if from >= bytes.len() as u64 {
                    return plain(416, "InvalidRange");
                }
                let to = to.min(bytes.len() as u64 - 1);
                let part = bytes.slice(from as usize..to as usize + 1);
                let response = self.described(206, *generation).header("content-range", format!("bytes {from}-{to}/{}", bytes.len()));
                response.body(Body::from(part)).unwrap()
            }
            "DELETE" => match self.objects.remove(key) {
                Some(_) => Response::builder().status(204).body(Body::empty()).unwrap(),
                None => plain(404, "NoSuchKey"),
            },
            _ => plain(405, "MethodNotAllowed"),
        }
    }

    fn described(&self, status: u16, generation: u64) -> axum::http::response::Builder {
        let response = Response::builder().status(status).header("etag", format!("\"tag-{generation}\""));
        response.header("x-goog-generation", generation.to_string()).header("last-modified", "Sun, 29 Nov 2026 22:00:00 GMT")
    }

    fn list(&self, query: &HashMap<String, String>) -> Response<Body> {
        let prefix = query.get("prefix").map_or("", String::as_str);
        let after = query.get("continuation-token").map_or("", String::as_str);
        let mut found = self.objects.iter().filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after);
        let mut text = "<ListBucketResult>".to_owned();
        let page: Vec<_> = found.by_ref().take(1000).collect();
        for (key, (generation, bytes)) in &page {
            text += &format!(
                "<Contents><Key>{}</Key><LastModified>2026-11-29T22:00:00.000Z</LastModified><ETag>\"tag-{generation}\"</ETag><Size>{}</Size></Contents>",
                escape(key),
                bytes.len()
            );
        }
        if let (Some((last, _)), true) = (page.last(), found.next().is_some()) {
            text += &format!("<NextContinuationToken>{}</NextContinuationToken>", escape(last));
        }
        Response::builder().status(200).body(Body::from(text + "</ListBucketResult>")).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gcs_stand_in_conforms() {
    let bucket = Arc::new(Mutex::new(Bucket::default()));
    let app =
        Router::new().fallback(move |method: Method, uri: Uri, query: Query<HashMap<String, String>>, headers: HeaderMap, body: Bytes| {
            let bucket = bucket.clone();
            async move {
                let path = uri.path().strip_prefix("/bkt").expect("the bucket's name");
                let key = percent_decode(path.strip_prefix('/').unwrap_or_default());
                bucket.lock().unwrap().serve(&method, &key, &query, &headers, body)
            }
        });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("gs://bkt?prefix=some/where&endpoint=http://{}&disable_https=true", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app.layer(DefaultBodyLimit::disable())).await });
    let key = r#"{"private_key":"-","private_key_id":"-","client_email":"-","disable_oauth":true}"#;
    let variables = Some([("GOOGLE_SERVICE_ACCOUNT_KEY".to_owned(), key.to_owned())].into());
    let options = StoreOptions { variables, ..StoreOptions::default() };
    let store = Store::open(&StoreUrl::parse(&url).unwrap(), options, Env::real()).await.unwrap();
    store.probe().await.unwrap();
    conformance::run(&store).await;
    assert_eq!(store.stats().http_failures, 0);
}
