//! Breaks a store on purpose, by script or by seed, and counts that it happened: a test whose fault never fired proves nothing.
//!
//! ```
//! # use hiloop_store::{Store, Call, faults::{Faults, Rule, Fault}};
//! # use hiloop_types::ErrorKind;
//! # async fn example(store: Store) {
//! let faults = Faults::default();
//! let store = store.wrapped(|backend| faults.wrap(backend));
//! let lost_answer = faults.inject(Rule::on(Fault::After(ErrorKind::Unavailable)).call(Call::Swap).key("heads/"));
//! // .. swap a head, expect the caller to read back ..
//! assert_eq!(lost_answer.fired(), 1);
//! # }
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use hiloop_env::Env;
use hiloop_types::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::backend::{Backend, Condition, ObjectInfo, PutOutcome, Versioned};
use crate::stats::Call;

/// What goes wrong with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails and had no effect. A conditional put says so (`Err`, not ambiguous).
    Before(ErrorKind),
    /// It takes effect and the answer is lost: a conditional put is ambiguous, everything else fails.
    After(ErrorKind),
    /// It waits, without effect, until [`Injected::release`]; then it goes on as if nothing had been.
    Stall,
    /// It takes effect, and then the answer waits until [`Injected::release`].
    StallAnswer,
    /// A put: the answer is lost now (as with `After(Unavailable)`) and the effect comes only with [`Injected::land`].
    Late,
    /// A conditional put: it takes effect, the answer is lost, and the client's own repetition is told "lost".
    LostThoughApplied,
    /// A conditional put: refused as lost without effect and without anybody else's object (409).
    LostThoughFree,
    /// A conditional put: the condition is ignored.
    Unconditional,
    /// A body of this many bytes at most; of a listing this many objects and then an error.
    Cut(u64),
    /// A body with one bit flipped at this offset, if it is so long.
    Flip(u64),
}

impl Fault {
    /// Whether this can happen to such a request at all: what cannot is neither done nor counted.
    fn applies_to(self, call: Call) -> bool {
        match self {
            Self::Before(_) | Self::After(_) | Self::Stall | Self::StallAnswer => true,
            Self::Late => matches!(call, Call::Put | Call::Create | Call::Swap),
            Self::LostThoughApplied | Self::LostThoughFree | Self::Unconditional => matches!(call, Call::Create | Call::Swap),
            Self::Cut(_) => matches!(call, Call::Get | Call::GetRange | Call::List),
            Self::Flip(_) => matches!(call, Call::Get | Call::GetRange),
        }
    }
}

/// Which requests a fault hits: only those that it can happen to.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    call: Option<Call>,
    key: Option<String>,
    skip: u64,
    times: u64,
}

impl Rule {
    /// A fault for the next request, whatever it is; narrowed and widened by the other calls.
    pub fn on(fault: Fault) -> Self {
        Self { fault, call: None, key: None, skip: 0, times: 1 }
    }
    /// Only requests of this kind.
    #[must_use]
    pub fn call(mut self, call: Call) -> Self {
        self.call = Some(call);
        self
    }
    /// Only keys (with the store's prefix) that contain this.
    #[must_use]
    pub fn key(mut self, part: impl Into<String>) -> Self {
        self.key = Some(part.into());
        self
    }
    /// Lets this many matching requests pass first.
    #[must_use]
    pub fn after(mut self, passed: u64) -> Self {
        self.skip = passed;
        self
    }
    /// Hits this many requests instead of one.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Whether this request is hit; counts it.
    fn hits(&mut self, call: Call, key: &str) -> bool {
        if !self.fault.applies_to(call)
            || self.call.is_some_and(|c| c != call)
            || self.key.as_deref().is_some_and(|part| !key.contains(part))
            || self.times == 0
        {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.times -= 1;
        true
    }
}

/// How often, per thousand requests, a seeded schedule does what. One random number is drawn per request, in the order of requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chaos {
    /// [`Fault::Before`] with `Unavailable`.
    pub before: u32,
    /// [`Fault::After`] with `Unavailable`.
    pub after: u32,
    /// [`Fault::LostThoughApplied`].
    pub lost_though_applied: u32,
    /// [`Fault::LostThoughFree`].
    pub lost_though_free: u32,
}

impl Chaos {
    fn draw(&self, random: u64) -> Option<Fault> {
        let mut at = (random % 1000) as u32;
        for (share, fault) in [
            (self.before, Fault::Before(ErrorKind::Unavailable)),
            (self.after, Fault::After(ErrorKind::Unavailable)),
            (self.lost_though_applied, Fault::LostThoughApplied),
            (self.lost_though_free, Fault::LostThoughFree),
        ] {
            if at < share {
                return Some(fault);
            }
            at -= share;
        }
        None
    }
}

/// An injected fault: shows that it happened, and lets go of what it holds.
#[derive(Clone)]
pub struct Injected(Arc<Held>);

struct Held {
    fired: watch::Sender<u64>,
    released: watch::Sender<bool>,
    late: Mutex<Vec<LatePut>>,
}

struct LatePut {
    backend: Arc<dyn Backend>,
    key: String,
    bytes: Bytes,
    condition: Condition,
}

impl Injected {
    fn new() -> Self {
        Self(Arc::new(Held { fired: watch::Sender::new(0), released: watch::Sender::new(false), late: Mutex::default() }))
    }
    /// How many requests were hit.
    pub fn fired(&self) -> u64 {
        *self.0.fired.borrow()
    }
    /// Waits until this many requests were hit.
    pub async fn reached(&self, times: u64) {
        let mut fired = self.0.fired.subscribe();
        // The sender lives in `self`, so the wait cannot end early.
        let _ = fired.wait_for(|n| *n >= times).await;
    }
    /// Lets stalled requests go on, now and in future.
    pub fn release(&self) {
        self.0.released.send_replace(true);
    }
    /// Lets the held [`Fault::Late`] puts take effect, in their order; their outcomes, which their senders never learn.
    pub async fn land(&self) -> Vec<Result<PutOutcome>> {
        let held = std::mem::take(&mut *self.0.late.lock());
        let mut outcomes = Vec::with_capacity(held.len());
        for put in held {
            outcomes.push(put.backend.put(&put.key, put.bytes, put.condition).await);
        }
        outcomes
    }
    async fn wait(&self) {
        let mut released = self.0.released.subscribe();
        let _ = released.wait_for(|r| *r).await;
    }
}

/// The faults of one or more wrapped stores; cheap to clone.
#[derive(Clone, Default)]
pub struct Faults(Arc<Shared>);

#[derive(Default)]
struct Shared {
    plan: Mutex<Plan>,
    refused_down: AtomicU64,
    chaos_fired: AtomicU64,
}

#[derive(Default)]
struct Plan {
    down: bool,
    rules: Vec<(Rule, Injected)>,
    chaos: Option<(Env, Chaos)>,
}

impl Faults {
    /// The backend with these faults before it.
    pub fn wrap(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(FaultBackend { inner, faults: self.clone() })
    }
    /// Adds a fault. Rules are asked in the order of their coming; the first that hits decides.
    pub fn inject(&self, rule: Rule) -> Injected {
        let injected = Injected::new();
        self.0.plan.lock().rules.push((rule, injected.clone()));
        injected
    }
    /// Switches the whole store off (every request fails as unavailable, without effect) or on again.
    pub fn set_down(&self, down: bool) {
        self.0.plan.lock().down = down;
    }
    /// Follows a schedule drawn from `env`: equal seeds and equal orders of requests give equal faults.
    pub fn schedule(&self, env: Env, chaos: Chaos) {
        self.0.plan.lock().chaos = Some((env, chaos));
    }
    /// Ends all faults; stalled requests go on.
    pub fn calm(&self) {
        let plan = std::mem::take(&mut *self.0.plan.lock());
        for (_, injected) in plan.rules {
            injected.release();
        }
    }
    /// Requests refused while down.
    pub fn refused_down(&self) -> u64 {
        self.0.refused_down.load(Ordering::Relaxed)
    }
    /// Faults that the schedule caused.
    pub fn chaos_fired(&self) -> u64 {
        self.0.chaos_fired.load(Ordering::Relaxed)
    }

    /// What happens to this request.
    fn decide(&self, call: Call, key: &str) -> Result<Option<(Fault, Injected)>> {
        let mut plan = self.0.plan.lock();
        if plan.down {
            self.0.refused_down.fetch_add(1, Ordering::Relaxed);
            return Err(Error::unavailable("the store is down (injected)"));
        }
        for (rule, injected) in &mut plan.rules {
            if rule.hits(call, key) {
                injected.0.fired.send_modify(|n| *n += 1);
                return Ok(Some((rule.fault, injected.clone())));
            }
        }
        let Some((env, chaos)) = &plan.chaos else { return Ok(None) };
        let fault = chaos.draw(env.random_u64());
        let fault = fault.filter(|f| f.applies_to(call));
        Ok(fault.map(|f| {
            self.0.chaos_fired.fetch_add(1, Ordering::Relaxed);
            (f, Injected::new())
        }))
    }
}

fn injected(kind: ErrorKind) -> Error {
    Error::new(kind, "injected fault")
}

struct FaultBackend {
    inner: Arc<dyn Backend>,
    faults: Faults,
}

impl FaultBackend {
    /// Runs a request that is not a put. Bodies are spoilt by `spoil`.
    async fn run<T: Send>(
        &self,
        call: Call,
        key: &str,
        request: impl Future<Output = Result<T>> + Send,
        spoil: impl FnOnce(Fault, T) -> T + Send,
    ) -> Result<T> {
        let Some((fault, handle)) = self.faults.decide(call, key)? else { return request.await };
        match fault {
            Fault::Before(kind) => Err(injected(kind)),
            Fault::After(kind) => {
                request.await?;
                Err(injected(kind))
            }
            Fault::Stall => {
                handle.wait().await;
                request.await
            }
            Fault::StallAnswer => {
                let answer = request.await;
                handle.wait().await;
                answer
            }
            fault => Ok(spoil(fault, request.await?)),
        }
    }
}

fn spoil(fault: Fault, bytes: Bytes) -> Bytes {
    match fault {
        Fault::Cut(len) => bytes.slice(..bytes.len().min(len as usize)),
        Fault::Flip(at) if at < bytes.len() as u64 => {
            let mut changed = BytesMut::from(&bytes[..]);
            changed[at as usize] ^= 1;
            changed.freeze()
        }
        _ => bytes,
    }
}

#[async_trait]
impl Backend for FaultBackend {
    async fn get(&self, key: &str) -> Result<Option<Versioned>> {
        let spoil = |fault, found: Option<Versioned>| found.map(|v| Versioned { bytes: spoil(fault, v.bytes), version: v.version });
        self.run(Call::Get, key, self.inner.get(key), spoil).await
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Option<Bytes>> {
        let spoil = |fault, found: Option<Bytes>| found.map(|b| spoil(fault, b));
        self.run(Call::GetRange, key, self.inner.get_range(key, offset, len), spoil).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>> {
        self.run(Call::Head, key, self.inner.head(key), |_, info| info).await
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<PutOutcome> {
        let call = match condition {
            Condition::Always => Call::Put,
            Condition::Absent => Call::Create,
            Condition::Version(_) => Call::Swap,
        };
        let lost_answer = |kind| match call {
            Call::Put => Err(injected(kind)),
            _ => Ok(PutOutcome::Ambiguous(injected(kind))),
        };
        let Some((fault, handle)) = self.faults.decide(call, key)? else { return self.inner.put(key, bytes, condition).await };
        match fault {
            Fault::Before(kind) => Err(injected(kind)),
            Fault::After(kind) => {
                self.inner.put(key, bytes, condition).await?;
                lost_answer(kind)
            }
            Fault::Stall => {
                handle.wait().await;
                self.inner.put(key, bytes, condition).await
            }
            Fault::StallAnswer => {
                let answer = self.inner.put(key, bytes, condition).await;
                handle.wait().await;
                answer
            }
            Fault::Late => {
                let late = LatePut { backend: self.inner.clone(), key: key.to_owned(), bytes, condition };
                handle.0.late.lock().push(late);
                lost_answer(ErrorKind::Unavailable)
            }
            Fault::LostThoughApplied => {
                self.inner.put(key, bytes, condition).await?;
                Ok(PutOutcome::Lost)
            }
            Fault::LostThoughFree => Ok(PutOutcome::Lost),
            Fault::Unconditional => self.inner.put(key, bytes, Condition::Always).await,
            // Faults of bodies never reach a put.
            Fault::Cut(_) | Fault::Flip(_) => self.inner.put(key, bytes, condition).await,
        }
    }

    async fn delete(&self, key: &str) -> Result<bool> {
        self.run(Call::Delete, key, self.inner.delete(key), |_, removed| removed).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<ObjectInfo>> {
        let decided = self.faults.decide(Call::List, prefix);
        let (fault, handle) = match decided {
            Err(error) => return stream::once(async { Err(error) }).boxed(),
            Ok(None) => return self.inner.list(prefix),
            Ok(Some(hit)) => hit,
        };
        let whole = self.inner.list(prefix);
        match fault {
            Fault::Before(kind) => stream::once(async move { Err(injected(kind)) }).boxed(),
            Fault::After(kind) => whole.chain(stream::once(async move { Err(injected(kind)) })).boxed(),
            Fault::Cut(len) => whole.take(len as usize).chain(stream::once(async { Err(injected(ErrorKind::Unavailable)) })).boxed(),
            Fault::Stall | Fault::StallAnswer => async move {
                handle.wait().await;
                whole
            }
            .flatten_stream()
            .boxed(),
            _ => whole,
        }
    }
}
