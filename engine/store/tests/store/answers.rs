//! What S3 answers, as a caller sees it: scripted responses over real HTTP pin the words that error mapping reads.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Response, Uri};
use bytes::Bytes;
use hiloop_env::Env;
use hiloop_store::{CreateOutcome, Store, StoreOptions, StoreUrl, SwapOutcome, Version};
use hiloop_types::ErrorKind;

use crate::s3_variables;

/// A server that answers what it was told to, in order, and then 500.
#[derive(Clone, Default)]
struct Script {
    answers: Arc<Mutex<VecDeque<Response<Body>>>>,
    seen: Arc<Mutex<Vec<(Method, Uri, HeaderMap)>>>,
}

fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Response<Body> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(Body::from(body.to_owned())).unwrap()
}

fn error(status: u16, code: &str) -> Response<Body> {
    let body = format!("<Error><Code>{code}</Code><AWSAccessKeyId>KEYID</AWSAccessKeyId><StringToSign>hunter2</StringToSign></Error>");
    answer(status, &[], &body)
}

const FOUND: &[(&str, &str)] = &[("etag", "\"e1\""), ("last-modified", "Sun, 29 Nov 2026 22:00:00 GMT")];

impl Script {
    async fn serve(answers: Vec<Response<Body>>) -> (Store, Self) {
        let script = Self::default();
        script.answers.lock().unwrap().extend(answers);
        let this = script.clone();
        let app = Router::new().fallback(move |method: Method, uri: Uri, headers: HeaderMap, _body: Bytes| {
            let this = this.clone();
            async move {
                this.seen.lock().unwrap().push((method, uri, headers));
                this.answers.lock().unwrap().pop_front().unwrap_or_else(|| error(500, "InternalError"))
            }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("s3://bkt?prefix=pre&endpoint=http://{}&disable_https=true&region=reg-1", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        let options = StoreOptions { variables: s3_variables(), ..StoreOptions::default() };
        (Store::open(&StoreUrl::parse(&url).unwrap(), options, Env::real()).await.unwrap(), script)
    }
}

fn any_version() -> Version {
    Version::from_tag("\"e0\"")
}

#[tokio::test]
async fn requests_carry_prefix_condition_region_and_signature() {
    let (store, script) = Script::serve(vec![answer(200, FOUND, ""), answer(200, FOUND, ""), answer(204, &[], "")]).await;
    assert!(matches!(store.create("a b", Bytes::new()).await, Ok(CreateOutcome::Done(_))));
    assert!(matches!(store.swap("k", &any_version(), Bytes::new()).await, Ok(SwapOutcome::Done(_))));
    assert!(store.delete("k").await.unwrap());
    let seen = script.seen.lock().unwrap();
    let of = |n: usize, name: &str| seen[n].2.get(name).map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default();
    assert_eq!(seen[0].1.path(), "/bkt/pre/a%20b", "path style is the default at an endpoint");
    assert_eq!(of(0, "if-none-match"), "*");
    assert!(of(0, "authorization").contains("/reg-1/s3/"), "{}", of(0, "authorization"));
    assert_eq!(of(1, "if-match"), "\"e0\"");
    assert_eq!((seen[2].0.as_str(), seen[2].1.path()), ("DELETE", "/bkt/pre/k"));
}

#[tokio::test]
async fn a_busy_store_is_asked_again_and_the_repetitions_are_counted() {
    let (store, _) = Script::serve(vec![error(503, "SlowDown"), error(429, "SlowDown"), answer(200, FOUND, "body")]).await;
    assert_eq!(store.get("k").await.unwrap().unwrap().bytes, "body");
    let stats = store.stats();
    assert_eq!((stats.gets, stats.http_requests, stats.http_failures, stats.bytes_in, stats.errors), (1, 3, 2, 4, 0));
}

#[tokio::test]
async fn a_store_that_only_fails_is_unavailable_and_a_conditional_put_ambiguous() {
    let (store, _) = Script::serve(vec![]).await;
    let error = store.get("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().ends_with("get k: the store answered 500 InternalError"), "{error}");
    assert_eq!(store.stats().http_requests, 7, "six repetitions");
    let CreateOutcome::Ambiguous(error) = store.create("k", Bytes::new()).await.unwrap() else { panic!() };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(store.put("k", Bytes::new()).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn refusals_name_call_key_and_remedy_and_no_secret() {
    for (status, code, kind, named) in [
        (403, "AccessDenied", ErrorKind::Denied, "credentials"),
        (403, "SignatureDoesNotMatch", ErrorKind::Denied, "SignatureDoesNotMatch"),
        (401, "Unauthorized", ErrorKind::Denied, "401"),
        (403, "RequestTimeTooSkewed", ErrorKind::Denied, "clock"),
        (404, "NoSuchBucket", ErrorKind::NotFound, "bucket"),
        (400, "InvalidArgument", ErrorKind::Invalid, "InvalidArgument"),
    ] {
        let answers = (0..4).map(|_| error(status, code)).collect();
        let (store, _) = Script::serve(answers).await;
        let get = store.get("heads/x").await.expect_err(code);
        let list = store.list("heads").await.unwrap_err();
        let create = store.create("heads/x", Bytes::new()).await.expect_err(code);
        let delete = store.delete("heads/x").await.unwrap_err();
        for (error, call) in [(get, "get heads/x"), (list, "list heads"), (create, "create heads/x"), (delete, "delete heads/x")] {
            assert_eq!(error.kind(), kind, "{code}: {error}");
            let text = error.to_string();
            assert!(text.contains(call) && text.contains(named) && text.contains("s3://bkt"), "{text}");
            assert!(!text.contains("hunter2") && !text.contains("KEYID"), "{text}");
        }
        assert_eq!(store.stats().http_requests, 4, "{code} is not asked again");
    }
}

#[tokio::test]
async fn a_lost_condition_is_lost_by_whatever_name() {
    let codes = [(412, "PreconditionFailed"), (409, "ConditionalRequestConflict")];
    for (status, code) in codes {
        let (store, _) = Script::serve(vec![error(status, code)]).await;
        assert!(matches!(store.create("k", Bytes::new()).await, Ok(CreateOutcome::Lost)), "{code}");
    }
    for (status, code) in [(412, "PreconditionFailed"), (404, "NoSuchKey")] {
        let (store, _) = Script::serve(vec![error(status, code)]).await;
        assert!(matches!(store.swap("k", &any_version(), Bytes::new()).await, Ok(SwapOutcome::Lost)), "{code}");
    }
    // The commit whose answer was lost, met by the client's own repetition.
    let (store, _) = Script::serve(vec![error(500, "InternalError"), error(412, "PreconditionFailed"), answer(200, FOUND, "mine")]).await;
    let settled = store.create_settled("k", Bytes::from_static(b"mine"), |b| b[..] == b"mine"[..]).await.unwrap();
    assert!(matches!(settled, hiloop_store::Settled::Won(_)), "{settled:?}");
}

#[tokio::test]
async fn a_refusal_after_a_failed_attempt_is_ambiguous() {
    let (store, _) = Script::serve(vec![error(500, "InternalError"), error(403, "AccessDenied")]).await;
    let CreateOutcome::Ambiguous(error) = store.create("k", Bytes::new()).await.unwrap() else {
        panic!("the first attempt may have landed")
    };
    assert_eq!(error.kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn a_missing_object_is_none_and_a_short_one_corrupt() {
    let (store, _) = Script::serve(vec![error(404, "NoSuchKey"), error(404, "NoSuchKey"), answer(404, &[], "")]).await;
    assert!(store.get("k").await.unwrap().is_none());
    assert!(!store.delete("k").await.unwrap());
    assert!(store.head("k").await.unwrap().is_none());
    let partial: Vec<_> = FOUND.iter().copied().chain([("content-range", "bytes 5-7/8")]).collect();
    let answers = vec![error(416, "InvalidRange"), answer(206, &partial, "567"), answer(200, FOUND, "01234567")];
    let (store, _) = Script::serve(answers).await;
    for why in ["beyond the end", "shorter than asked", "the whole instead of a part"] {
        let error = store.get_range("k", 5, 10).await.expect_err(why);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{why}: {error}");
    }
}

#[tokio::test]
async fn a_page_that_fails_fails_the_listing() {
    let page = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken><Contents><Key>pre/p/1</Key>\
        <LastModified>2026-11-29T22:00:00.000Z</LastModified><ETag>\"e\"</ETag><Size>1</Size></Contents></ListBucketResult>";
    let (store, _) = Script::serve(vec![answer(200, &[], page), error(403, "AccessDenied")]).await;
    assert_eq!(store.list("p").await.unwrap_err().kind(), ErrorKind::Denied);
    let garbled = vec![answer(200, &[], "<ListBucketResult><Contents><Key>")];
    let (store, _) = Script::serve(garbled).await;
    assert_eq!(store.list("p").await.unwrap_err().kind(), ErrorKind::Unavailable);
    let (store, _) = Script::serve(vec![answer(
        200,
        &[],
        &page.replace("true", "false").replace("pre/p/1", "other/1").replace("<NextContinuationToken>t</NextContinuationToken>", ""),
    )])
    .await;
    assert_eq!(store.list("p").await.unwrap_err().kind(), ErrorKind::Corrupt, "a key outside of the prefix");
}

#[tokio::test]
async fn a_store_that_is_not_there_is_unavailable() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = StoreUrl::parse(&format!("s3://b?endpoint=http://127.0.0.1:{port}&disable_https=true")).unwrap();
    let options = StoreOptions { variables: s3_variables(), ..StoreOptions::default() };
    let store = Store::open(&url, options, Env::real()).await.unwrap();
    let error = store.get("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("cannot connect"), "{error}");
}

#[tokio::test]
async fn half_a_credential_is_named_when_the_store_is_opened() {
    let variables = Some([("AWS_ACCESS_KEY_ID".to_owned(), "KEYID".to_owned())].into());
    let options = StoreOptions { variables, ..StoreOptions::default() };
    let error = Store::open(&StoreUrl::parse("s3://b").unwrap(), options, Env::real()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("ecret"), "{error}");
}
