//! `GET /control` shows the state, `PUT /control` replaces the plan and shows the state.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::body::{AnyBody, BoxError, full};
use crate::serve::Core;

/// Longest plan, bytes.
const PLAN_MAX: usize = 1 << 20;

pub(crate) async fn start(address: SocketAddr, core: Arc<Core>) -> io::Result<(SocketAddr, JoinHandle<()>)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let task = tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::task::yield_now().await;
                continue;
            };
            let core = core.clone();
            let service = service_fn(move |request| answer(core.clone(), request));
            tokio::spawn(http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service));
        }
    });
    Ok((address, task))
}

async fn answer(core: Arc<Core>, request: Request<Incoming>) -> Result<Response<AnyBody>, BoxError> {
    if request.uri().path() != "/control" {
        return Ok(text(StatusCode::NOT_FOUND, "there is only /control\n".into()));
    }
    match *request.method() {
        Method::GET => {}
        Method::PUT => {
            let bytes = match Limited::new(request.into_body(), PLAN_MAX).collect().await {
                Ok(body) => body.to_bytes(),
                Err(error) => return Ok(text(StatusCode::BAD_REQUEST, format!("the plan cannot be read: {error}\n"))),
            };
            let applied = match serde_json::from_slice(&bytes) {
                Ok(plan) => core.apply(plan).await,
                Err(error) => Err(error.to_string()),
            };
            if let Err(why) = applied {
                return Ok(text(StatusCode::BAD_REQUEST, format!("no plan: {why}\n")));
            }
        }
        _ => {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "GET or PUT\n".into());
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, PUT"));
            return Ok(answer);
        }
    }
    let mut answer = text(StatusCode::OK, serde_json::to_string_pretty(&core.state())? + "\n");
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(answer)
}

fn text(status: StatusCode, text: String) -> Response<AnyBody> {
    let mut answer = Response::new(full(text));
    *answer.status_mut() = status;
    answer
}
