//! Each fault and the shaping against a small server in this process, seen from a raw socket.

#![allow(clippy::unwrap_used, reason = "a test ends where it is surprised")]

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use hiloop_proxy::{Fault, Options, Plan, Profile, Proxy, Rule, State};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::IF_NONE_MATCH;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Objects by path, and each request's line with its `host`.
#[derive(Default)]
struct Upstream {
    objects: Mutex<HashMap<String, Bytes>>,
    seen: Mutex<Vec<String>>,
}

impl Upstream {
    async fn start() -> (Arc<Self>, SocketAddr) {
        let (this, listener) = (Arc::new(Self::default()), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let (address, server) = (listener.local_addr().unwrap(), this.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = server.clone();
                let service = service_fn(move |request| answer(server.clone(), request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        (this, address)
    }
}

async fn answer(server: Arc<Upstream>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let host = head.headers.get("host").map_or("", |v| v.to_str().unwrap());
    server.seen.lock().push(format!("{} {} {host}", head.method, head.uri));
    let path = head.uri.path().to_owned();
    // A body that breaks off is not applied.
    let Ok(body) = body.collect().await else { return Ok(Response::new(Full::default())) };
    let (status, body) = match head.method {
        Method::PUT if head.headers.contains_key(IF_NONE_MATCH) && server.objects.lock().contains_key(&path) => {
            (StatusCode::PRECONDITION_FAILED, Bytes::new())
        }
        Method::PUT => {
            server.objects.lock().insert(path, body.to_bytes());
            (StatusCode::OK, Bytes::new())
        }
        _ => match server.objects.lock().get(&path) {
            Some(bytes) => (StatusCode::OK, bytes.clone()),
            None => (StatusCode::NOT_FOUND, Bytes::from_static(b"absent")),
        },
    };
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    Ok(answer)
}

async fn rig(plan: Plan) -> (Arc<Upstream>, Proxy) {
    let (server, upstream) = Upstream::start().await;
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let proxy = Proxy::start(Options { listen: any, control: any, upstream, seed: 1, plan }).await.unwrap();
    (server, proxy)
}

fn one(rule: Rule) -> Plan {
    Plan { rules: vec![Rule { count: Some(1), ..rule }], ..Plan::default() }
}

fn happened(proxy: &Proxy, fault: Fault) -> u64 {
    proxy.state().counters.faults[&fault]
}

/// All that comes back on one connection, and how it ended.
async fn talk(address: SocketAddr, text: &[u8]) -> (String, Result<(), ErrorKind>) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text).await.unwrap();
    let (mut got, mut piece) = (Vec::new(), [0; 4096]);
    let end = loop {
        match stream.read(&mut piece).await {
            Ok(0) => break Ok(()),
            Ok(n) => got.extend_from_slice(&piece[..n]),
            Err(e) => break Err(e.kind()),
        }
    };
    (String::from_utf8_lossy(&got).into_owned(), end)
}

async fn ask(proxy: &Proxy, method: &str, path: &str, extra: &str, body: &str) -> (String, Result<(), ErrorKind>) {
    let len = body.len();
    let text =
        format!("{method} {path} HTTP/1.1\r\nhost: store.example:9\r\nconnection: close\r\n{extra}content-length: {len}\r\n\r\n{body}");
    talk(proxy.listen(), text.as_bytes()).await
}

async fn put(proxy: &Proxy, path: &str, body: &str) -> String {
    ask(proxy, "PUT", path, "", body).await.0
}
async fn get(proxy: &Proxy, path: &str) -> String {
    ask(proxy, "GET", path, "", "").await.0
}

#[tokio::test]
async fn a_request_is_forwarded_as_it_was_signed() {
    let (server, proxy) = rig(Plan::default()).await;
    let path = "/b/a%20b/%C3%BC+?list-type=2&prefix=x%2Fy&empty";
    assert!(put(&proxy, path, "body").await.starts_with("HTTP/1.1 200"));
    assert_eq!(*server.seen.lock(), [format!("PUT {path} store.example:9")]);
    assert!(get(&proxy, path).await.ends_with("\r\n\r\nbody"));
    let counters = proxy.state().counters;
    let (puts, gets) = (counters.methods["PUT"], counters.methods["GET"]);
    assert_eq!((puts.requests, puts.bytes_up, gets.requests, gets.bytes_down), (1, 4, 1, 4));
    assert_eq!(counters.connections, 2);
}

#[tokio::test]
async fn slow_down_forwards_nothing() {
    let (server, proxy) = rig(one(Rule { retry_after_s: 3, ..Rule::new(Fault::SlowDown) })).await;
    let answer = put(&proxy, "/k", "body").await;
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: 3") && answer.contains("<Code>SlowDown</Code>"),
        "{answer}"
    );
    assert!(server.seen.lock().is_empty());
    assert!(put(&proxy, "/k", "body").await.starts_with("HTTP/1.1 200"));
    assert_eq!(happened(&proxy, Fault::SlowDown), 1);
}

#[tokio::test]
async fn a_reset_before_forwards_nothing() {
    let (server, proxy) = rig(one(Rule::new(Fault::ResetBefore))).await;
    assert_eq!(ask(&proxy, "GET", "/k", "", "").await, (String::new(), Err(ErrorKind::ConnectionReset)));
    assert!(server.seen.lock().is_empty());
    assert_eq!(happened(&proxy, Fault::ResetBefore), 1);
}

#[tokio::test]
async fn what_is_applied_may_be_answered_by_a_reset_or_an_error() {
    let (server, proxy) = rig(one(Rule::new(Fault::ResetApplied))).await;
    assert_eq!(ask(&proxy, "PUT", "/k", "", "one").await, (String::new(), Err(ErrorKind::ConnectionReset)));
    assert_eq!(server.objects.lock()["/k"], "one");
    proxy.apply(one(Rule::new(Fault::ErrorApplied))).await.unwrap();
    let answer = put(&proxy, "/k", "two").await;
    assert!(answer.starts_with("HTTP/1.1 500") && answer.contains("InternalError"), "{answer}");
    assert_eq!(server.objects.lock()["/k"], "two");
    assert_eq!((happened(&proxy, Fault::ResetApplied), happened(&proxy, Fault::ErrorApplied)), (1, 1));
}

#[tokio::test]
async fn what_the_server_refuses_keeps_its_answer_and_the_fault_stays_due() {
    let rule = Rule { methods: vec!["PUT".into()], conditional: Some(true), ..Rule::new(Fault::ErrorApplied) };
    let (_server, proxy) = rig(one(rule)).await;
    put(&proxy, "/k", "one").await;
    let refused = ask(&proxy, "PUT", "/k", "if-none-match: *\r\n", "two").await.0;
    assert!(refused.starts_with("HTTP/1.1 412"), "{refused}");
    assert_eq!(happened(&proxy, Fault::ErrorApplied), 0);
    let applied = ask(&proxy, "PUT", "/other", "if-none-match: *\r\n", "two").await.0;
    assert!(applied.starts_with("HTTP/1.1 500"), "{applied}");
    assert_eq!(happened(&proxy, Fault::ErrorApplied), 1);
}

#[tokio::test]
async fn bodies_are_cut_short_in_order_or_by_a_reset() {
    let (_server, proxy) = rig(Plan::default()).await;
    let body = "0123456789".repeat(20_000);
    put(&proxy, "/k", &body).await;
    for (fault, after, want, end) in [
        (Fault::CutBody, None, 100_000, Ok(())),
        (Fault::CutBody, Some(7), 7, Ok(())),
        (Fault::CutBody, Some(0), 0, Ok(())),
        (Fault::ResetDuring, Some(60_000), 60_000, Err(ErrorKind::ConnectionReset)),
    ] {
        proxy.apply(one(Rule { after_bytes: after, ..Rule::new(fault) })).await.unwrap();
        let (answer, ended) = ask(&proxy, "GET", "/k", "", "").await;
        let (head, part) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("200 OK") && head.contains("content-length: 200000"), "{head}");
        assert_eq!((part, ended), (&body[..want], end), "{fault:?} after {after:?}");
    }
    assert_eq!((happened(&proxy, Fault::CutBody), happened(&proxy, Fault::ResetDuring)), (3, 1));
    assert!(get(&proxy, "/k").await.ends_with(&body));
    // No body, no cut.
    proxy.apply(one(Rule::new(Fault::CutBody))).await.unwrap();
    assert!(get(&proxy, "/absent").await.ends_with("absent"));
    assert_eq!(happened(&proxy, Fault::CutBody), 3);
}

#[tokio::test]
async fn a_stall_lasts_until_the_next_plan() {
    let (server, proxy) = rig(one(Rule::new(Fault::Stall))).await;
    let mut stream = TcpStream::connect(proxy.listen()).await.unwrap();
    stream.write_all(b"GET /k HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
    while happened(&proxy, Fault::Stall) == 0 {
        tokio::task::yield_now().await;
    }
    // Another request passes meanwhile.
    assert!(get(&proxy, "/k").await.starts_with("HTTP/1.1 404"));
    let mut byte = [0];
    assert_eq!(stream.try_read(&mut byte).unwrap_err().kind(), ErrorKind::WouldBlock);
    proxy.apply(Plan::default()).await.unwrap();
    assert_eq!(stream.read(&mut byte).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(server.seen.lock().len(), 1);
}

#[tokio::test]
async fn an_outage_refuses_connections_and_resets_the_open_ones() {
    let (_server, proxy) = rig(Plan::default()).await;
    let mut idle = TcpStream::connect(proxy.listen()).await.unwrap();
    idle.write_all(b"PUT /k HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\n\r\none").await.unwrap();
    let mut piece = [0; 1024];
    assert!(idle.read(&mut piece).await.unwrap() > 0);
    proxy.apply(Plan { outage: true, ..Plan::default() }).await.unwrap();
    assert_eq!(idle.read(&mut piece).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    for _ in 0..3 {
        assert_eq!(TcpStream::connect(proxy.listen()).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
    // Twice away is once away.
    proxy.apply(Plan { outage: true, ..Plan::default() }).await.unwrap();
    let counters = proxy.state().counters;
    assert_eq!((counters.outages, counters.outage_resets), (1, 1));
    proxy.apply(Plan::default()).await.unwrap();
    assert!(get(&proxy, "/k").await.ends_with("one"));
}

#[tokio::test]
async fn a_delayed_answer_is_whole() {
    let (server, proxy) = rig(one(Rule { delay_ms: 1, ..Rule::new(Fault::Delay) })).await;
    assert!(put(&proxy, "/k", "late").await.starts_with("HTTP/1.1 200"));
    assert_eq!(server.objects.lock()["/k"], "late");
    assert_eq!(happened(&proxy, Fault::Delay), 1);
}

#[tokio::test]
async fn shaped_bodies_are_whole_both_ways() {
    let (_server, proxy) = rig(Plan { profile: Profile::Undelayed, ..Plan::default() }).await;
    // More than a bucket saves up, so that frames really wait.
    let body = "0123456789abcdef".repeat(100_000);
    assert!(put(&proxy, "/k", &body).await.starts_with("HTTP/1.1 200"));
    assert!(get(&proxy, "/k").await.ends_with(&body));
    let methods = proxy.state().counters.methods;
    assert_eq!((methods["PUT"].bytes_up, methods["GET"].bytes_down), (1_600_000, 1_600_000));
    for profile in [Profile::Steady, Profile::Jitter] {
        proxy.apply(Plan { profile, ..Plan::default() }).await.unwrap();
        assert!(get(&proxy, "/k").await.ends_with(&body), "{profile:?}");
    }
}

async fn control(proxy: &Proxy, method: &str, path: &str, body: &str) -> String {
    let text = format!("{method} {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    talk(proxy.control(), text.as_bytes()).await.0
}

#[tokio::test]
async fn the_control_endpoint_shows_and_replaces_the_plan() {
    let (_server, proxy) = rig(Plan::default()).await;
    let plan = r#"{"profile":"steady","rules":[{"fault":"slow_down","methods":["PUT"],"path_prefix":"/b/packs/","count":2}]}"#;
    let put = control(&proxy, "PUT", "/control", plan).await;
    let state: State = serde_json::from_str(put.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(state.plan, serde_json::from_str::<Plan>(plan).unwrap());
    assert!(state.counters.faults.len() == Fault::ALL.len() && state.counters.cpu_us > 0);
    assert!(crate::put(&proxy, "/b/packs/1", "x").await.starts_with("HTTP/1.1 503"));
    let got = control(&proxy, "GET", "/control", "").await;
    let state: State = serde_json::from_str(got.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!((state.rules[0].fired, state.counters.faults[&Fault::SlowDown]), (1, 1));
    // What is refused changes nothing.
    for (bad, named) in [
        (r#"{"outrage":true}"#, "outrage"),
        (r#"{"rules":[{"fault":"flood"}]}"#, "flood"),
        (r#"{"rules":[{"fault":"stall","probability":2}]}"#, "rules[0].probability"),
        (r#"{"rules":[{"fault":"stall","methods":["put"]}]}"#, "rules[0].methods"),
    ] {
        let answer = control(&proxy, "PUT", "/control", bad).await;
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains(named), "{answer}");
    }
    assert_eq!(proxy.state().rules[0].fired, 1);
    assert!(control(&proxy, "GET", "/", "").await.starts_with("HTTP/1.1 404"));
    assert!(control(&proxy, "DELETE", "/control", "").await.starts_with("HTTP/1.1 405"));
}

#[tokio::test]
async fn only_loopback_addresses_are_taken() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let upstream = SocketAddr::from(([192, 0, 2, 1], 80));
    let refused = Proxy::start(Options { listen: any, control: any, upstream, seed: 1, plan: Plan::default() }).await;
    assert!(refused.err().unwrap().to_string().contains("192.0.2.1:80"));
}

#[tokio::test]
async fn a_server_that_is_away_is_a_502_and_counted() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    // A bound port where nobody listens.
    let closed = std::net::TcpListener::bind(any).unwrap();
    let upstream = closed.local_addr().unwrap();
    drop(closed);
    let proxy = Proxy::start(Options { listen: any, control: any, upstream, seed: 1, plan: Plan::default() }).await.unwrap();
    assert!(get(&proxy, "/k").await.starts_with("HTTP/1.1 502"));
    assert_eq!(proxy.state().counters.upstream_failures, 1);
}
