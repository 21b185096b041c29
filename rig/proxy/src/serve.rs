//! What happens to one request.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hiloop_env::Env;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::watch;

use crate::body::{AnyBody, BoxError, Cut, Metered, drain, full};
use crate::gate::Gate;
use crate::plan::{Fault, Plan};
use crate::rules::{Hit, Rules};
use crate::shape::{Chance, Profile, Trunk};
use crate::stats::{State, Stats, Way};
use crate::wire::WireState;

/// Headers of one connection, not of the message.
const HOP_BY_HOP: [&str; 4] = ["connection", "keep-alive", "proxy-connection", "upgrade"];

/// The proxy behind its sockets.
pub(crate) struct Core {
    pub(crate) stats: Stats,
    gate: Gate,
    rules: Rules,
    chance: Chance,
    env: Env,
    upstream: SocketAddr,
    client: Client<HttpConnector, AnyBody>,
    up: Trunk,
    down: Trunk,
    /// Moves with every plan: stalls end.
    plans: watch::Sender<u64>,
    /// One change of plan at a time, so that the gate follows the last one.
    changing: tokio::sync::Mutex<()>,
}

impl Core {
    /// Nothing listens before the first plan.
    pub(crate) fn new(listen: SocketAddr, upstream: SocketAddr, seed: u64, env: Env) -> io::Result<Arc<Self>> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Ok(Arc::new(Self {
            stats: Stats::default(),
            gate: Gate::reserve(listen)?,
            rules: Rules::default(),
            chance: Chance::new(seed),
            env,
            upstream,
            client: Client::builder(TokioExecutor::new()).build(connector),
            up: Trunk::default(),
            down: Trunk::default(),
            plans: watch::Sender::new(0),
            changing: tokio::sync::Mutex::default(),
        }))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.gate.address()
    }
    pub(crate) fn state(&self) -> State {
        State { plan: self.rules.plan(), rules: self.rules.state(), counters: self.stats.counters() }
    }
    pub(crate) fn stop(&self) {
        self.gate.stop();
    }

    /// Replaces the plan; when this returns, connections are refused or taken as it says.
    pub(crate) async fn apply(self: &Arc<Self>, plan: Plan) -> Result<(), String> {
        plan.check()?;
        let _one = self.changing.lock().await;
        let outage = plan.outage;
        self.rules.replace(plan);
        self.plans.send_modify(|n| *n += 1);
        if outage {
            if self.gate.close().await {
                Stats::add(&self.stats.outages);
            }
            Ok(())
        } else {
            self.gate.open(self).map_err(|e| format!("cannot listen on {}: {e}", self.address()))
        }
    }

    fn profile(&self) -> Profile {
        self.rules.plan().profile
    }

    /// How long these bytes take on this connection under the profile in force.
    pub(crate) fn passing(&self, wire: &WireState, way: Way, bytes: u64) -> Duration {
        if !self.profile().limits_bandwidth() {
            return Duration::ZERO;
        }
        let now = self.env.monotonic();
        match way {
            Way::Up => wire.up.take(&self.up, now, bytes),
            Way::Down => wire.down.take(&self.down, now, bytes),
        }
    }

    /// Answers one request; an error ends the connection, with a reset where `wire` is doomed.
    pub(crate) async fn handle(self: Arc<Self>, wire: Arc<WireState>, request: Request<Incoming>) -> Result<Response<AnyBody>, BoxError> {
        let method = request.method().clone();
        self.stats.request(&method);
        if self.chance.happens(self.profile().refusals()) {
            drain(request.into_body()).await;
            Stats::add(&self.stats.refusals);
            return Ok(slow_down(1));
        }
        let hit = self.rules.pick(&method, request.uri().path(), request.headers(), &self.chance);
        match hit.as_ref().map(|h| h.rule.fault) {
            Some(Fault::SlowDown) => {
                drain(request.into_body()).await;
                self.stats.fault(Fault::SlowDown);
                Ok(slow_down(hit.map_or(0, |h| h.rule.retry_after_s)))
            }
            Some(Fault::Stall) => {
                let mut plans = self.plans.subscribe();
                drain(request.into_body()).await;
                self.stats.fault(Fault::Stall);
                // The sender lives as long as this core.
                let _ = plans.changed().await;
                wire.doom();
                Err("the stall is over".into())
            }
            Some(Fault::ResetBefore) => {
                self.stats.fault(Fault::ResetBefore);
                wire.doom();
                Err("reset on purpose".into())
            }
            _ => self.forward(wire, method, request, hit).await,
        }
    }

    async fn forward(
        self: Arc<Self>,
        wire: Arc<WireState>,
        method: Method,
        request: Request<Incoming>,
        hit: Option<Hit>,
    ) -> Result<Response<AnyBody>, BoxError> {
        let (mut head, body) = request.into_parts();
        strip(&mut head.headers);
        let path = head.uri.path_and_query().map_or("/", |p| p.as_str());
        head.uri = Uri::builder().scheme("http").authority(self.upstream.to_string()).path_and_query(path).build()?;
        let body = Metered::new(body, self.clone(), wire.clone(), method.clone(), Way::Up);
        let answer = match self.client.request(Request::from_parts(head, body.boxed_unsync())).await {
            Ok(answer) => answer,
            Err(error) => {
                Stats::add(&self.stats.upstream_failures);
                let mut answer = Response::new(full(format!("the server behind the proxy did not answer: {error}")));
                *answer.status_mut() = StatusCode::BAD_GATEWAY;
                return Ok(answer);
            }
        };
        tokio::time::sleep(self.profile().delay(&method, &self.chance)).await;
        let (mut head, body) = answer.into_parts();
        strip(&mut head.headers);
        let length = head.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok()).unwrap_or(0);
        let hit = hit.filter(|hit| {
            let possible = head.status.is_success() && (!hit.rule.fault.needs_body() || length > 0);
            if !possible {
                self.rules.give_back(hit);
            }
            possible
        });
        let metered = |body| Metered::new(body, self.clone(), wire.clone(), method.clone(), Way::Down).boxed_unsync();
        let Some(hit) = hit else { return Ok(Response::from_parts(head, metered(body))) };
        let fault = hit.rule.fault;
        match fault {
            Fault::CutBody | Fault::ResetDuring => {
                let bytes = hit.rule.after_bytes.unwrap_or(length / 2).min(length - 1);
                let cut = Cut::new(metered(body), bytes, fault, self.clone(), wire.clone());
                Ok(Response::from_parts(head, cut.boxed_unsync()))
            }
            Fault::ErrorApplied => {
                drain(body).await;
                self.stats.fault(fault);
                Ok(error_answer(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "applied, and then this"))
            }
            Fault::ResetApplied => {
                drain(body).await;
                self.stats.fault(fault);
                wire.doom();
                Err("reset on purpose".into())
            }
            Fault::Delay => {
                self.stats.fault(fault);
                tokio::time::sleep(Duration::from_millis(hit.rule.delay_ms)).await;
                Ok(Response::from_parts(head, metered(body)))
            }
            Fault::SlowDown | Fault::Stall | Fault::ResetBefore => Err("handled before forwarding".into()),
        }
    }
}

fn strip(headers: &mut HeaderMap) {
    // What `Connection` names belongs to the connection as well.
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

fn slow_down(retry_after_s: u64) -> Response<AnyBody> {
    let mut answer = error_answer(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", "Please reduce your request rate.");
    answer.headers_mut().insert(RETRY_AFTER, retry_after_s.into());
    answer
}

fn error_answer(status: StatusCode, code: &str, message: &str) -> Response<AnyBody> {
    let body = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>");
    let mut answer = Response::new(full(Bytes::from(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/xml"));
    answer
}
