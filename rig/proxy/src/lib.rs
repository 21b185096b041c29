//! A loopback HTTP/1.1 proxy in front of an S3 server, for tests and benchmarks: it breaks requests on purpose and by count, and it
//! makes the server as slow as a real one.
//!
//! [`Plan`] says what to do and can be replaced at any time through the control endpoint (`GET` and `PUT /control`, JSON, a port of its
//! own). [`Rule`]s pick requests by method, path and condition, by probability or count; [`State`] counts what was really done, so that
//! a test proves that its fault happened. [`Profile`]s shape what is forwarded.
//!
//! Bodies are streamed. The request is forwarded as it was signed: the same path, query and `Host`, so that SigV4 stays valid.
//! Everything random is drawn from one seed; with concurrent requests the order of arrival decides who gets which draw.

mod body;
mod control;
mod gate;
mod plan;
mod rules;
mod serve;
mod shape;
mod stats;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hiloop_env::Env;
use tokio::task::JoinHandle;

pub use plan::{Fault, Plan, Rule};
pub use shape::Profile;
pub use stats::{Counters, MethodCount, RuleState, State};

/// Where a proxy listens and what it starts with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address for clients; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Address of the control endpoint; port 0 takes a free one.
    pub control: SocketAddr,
    /// The server behind.
    pub upstream: SocketAddr,
    /// Seed of everything random.
    pub seed: u64,
    /// What to do until the control endpoint says otherwise.
    pub plan: Plan,
}

/// A running proxy; it ends when this is dropped.
pub struct Proxy {
    core: Arc<serve::Core>,
    control: SocketAddr,
    control_task: JoinHandle<()>,
}

impl Proxy {
    /// Starts to listen; needs a tokio runtime.
    ///
    /// # Errors
    /// `InvalidInput` for an address that is not loopback or a plan that cannot be; else what binding says.
    pub async fn start(options: Options) -> io::Result<Self> {
        for address in [options.listen, options.control, options.upstream] {
            if !address.ip().is_loopback() {
                let why = format!("{address} is no loopback address: this proxy is for tests on one machine");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
        }
        let core = serve::Core::new(options.listen, options.upstream, options.seed, Env::real())?;
        core.apply(options.plan).await.map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        let (control, control_task) = control::start(options.control, core.clone()).await?;
        Ok(Self { core, control, control_task })
    }
    /// Address for clients.
    pub fn listen(&self) -> SocketAddr {
        self.core.address()
    }
    /// Address of the control endpoint.
    pub fn control(&self) -> SocketAddr {
        self.control
    }
    /// Replaces the plan, as `PUT /control` does.
    ///
    /// # Errors
    /// Why the plan cannot be.
    pub async fn apply(&self, plan: Plan) -> Result<(), String> {
        self.core.apply(plan).await
    }
    /// What was done so far, as `GET /control` shows it.
    pub fn state(&self) -> State {
        self.core.state()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.control_task.abort();
        self.core.stop();
    }
}
