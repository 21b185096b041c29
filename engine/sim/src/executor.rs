//! A schedule that a seed decides: tasks, blocking jobs and time of everything in a simulated world.
//!
//! One thing runs at a time. Whatever is ready is picked at random; where nothing is, time jumps to the next timer, so a simulated hour
//! costs what happens in it. A blocking job has a thread of its own (it may wait in the middle of ordinary code), but runs only while the
//! conductor waits for it: threads change the stack, never the order.
//!
//! Tasks belong to a [`Group`]: the incarnation of a node, or the world around. [`Executor::kill`] ends a group wherever its tasks stand, as
//! a killed process ends.

mod strand;

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use hiloop_env::{Clock, Env, Job, Random, Seeded, Tasks};
use parking_lot::Mutex;
use strand::{Strand, Yielded};

/// Steps after which a world is called stuck in circles.
const STEPS_MAX: u64 = 20_000_000;

/// The conductor. Cheap to clone.
#[derive(Clone)]
pub struct Executor(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    random: Seeded,
}

struct State {
    now: Duration,
    next: u64,
    tasks: BTreeMap<u64, Slot>,
    ready: Vec<u64>,
    timers: BTreeMap<(Duration, u64), Waker>,
    steps: u64,
    /// Digest of all that happened, in order.
    digest: u64,
    /// What happened, for people, where that is wanted.
    trace: Option<Vec<String>>,
    panicked: Option<String>,
}

struct Slot {
    group: u64,
    queued: bool,
    body: Option<Body>,
}

enum Body {
    Future(Job),
    Strand(Arc<Strand>),
}

/// Why a world came to no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// Everybody waits for somebody.
    Deadlock,
    /// It goes on and on.
    Endless,
    /// Code that was run panicked.
    Panicked(String),
}

impl Executor {
    /// A schedule; with `traced` what happens is also kept as text.
    pub fn new(seed: u64, traced: bool) -> Self {
        let state = State {
            now: Duration::ZERO,
            next: 1,
            tasks: BTreeMap::new(),
            ready: Vec::new(),
            timers: BTreeMap::new(),
            steps: 0,
            digest: 0xcbf2_9ce4_8422_2325,
            trace: traced.then(Vec::new),
            panicked: None,
        };
        Self(Arc::new(Inner { state: Mutex::new(state), random: Seeded::new(seed) }))
    }
    /// Virtual time since the start.
    pub fn now(&self) -> Duration {
        self.0.state.lock().now
    }
    /// A random number below `n`.
    pub fn below(&self, n: u64) -> u64 {
        self.0.random.next_u64() % n.max(1)
    }
    /// True in `of` cases out of a thousand.
    pub fn chance(&self, of: u64) -> bool {
        self.below(1000) < of
    }
    /// Notes something in the trace and its digest.
    pub fn note(&self, what: impl FnOnce() -> String) {
        let what = what();
        let state = &mut *self.0.state.lock();
        for b in what.as_bytes() {
            state.mix(u64::from(*b));
        }
        if let Some(trace) = &mut state.trace {
            trace.push(format!("{:>10.3} {what}", state.now.as_secs_f64()));
        }
    }
    /// Digest of all that happened so far: equal for equal seeds.
    pub fn digest(&self) -> u64 {
        self.0.state.lock().digest
    }
    /// Steps taken so far.
    pub fn steps(&self) -> u64 {
        self.0.state.lock().steps
    }
    /// The trace kept so far.
    pub fn trace(&self) -> Vec<String> {
        self.0.state.lock().trace.clone().unwrap_or_default()
    }

    /// A new group of tasks.
    pub fn group(&self) -> Group {
        let id = self.0.state.lock().fresh();
        Group(Arc::new(GroupInner { exec: Arc::downgrade(&self.0), id, dead: AtomicBool::new(false) }))
    }
    /// Surroundings whose tasks belong to `group`. Wall time is `wall` more than virtual time.
    pub fn env(&self, group: &Group, seed: u64, wall: Arc<WallOffset>) -> Env {
        let clock = VirtualClock { exec: self.clone(), wall };
        Env::from_parts(Arc::new(clock), Arc::new(Seeded::new(seed)), Arc::new(group.clone()))
    }

    /// Ends all tasks of a group where they stand.
    pub fn kill(&self, group: &Group) {
        group.0.dead.store(true, Ordering::SeqCst);
        let doomed: Vec<Body> = {
            let state = &mut *self.0.state.lock();
            let ids: Vec<u64> = state.tasks.iter().filter(|(_, s)| s.group == group.0.id).map(|(id, _)| *id).collect();
            state.ready.retain(|id| !ids.contains(id));
            ids.iter().filter_map(|id| state.tasks.remove(id)?.body).collect()
        };
        for body in doomed {
            match body {
                Body::Future(f) => drop(f),
                Body::Strand(s) => s.kill(),
            }
        }
    }

    /// Runs `main` in a group of its own until it has ended.
    ///
    /// # Errors
    /// Why it does not end.
    pub fn run<T: Send + 'static>(&self, main: impl Future<Output = T> + Send + 'static) -> Result<T, Stuck> {
        let result = Arc::new(Mutex::new(None));
        let (group, out) = (self.group(), result.clone());
        group.spawn(Box::pin(async move {
            let value = main.await;
            *out.lock() = Some(value);
        }));
        loop {
            if let Some(value) = result.lock().take() {
                return Ok(value);
            }
            if let Some(text) = self.0.state.lock().panicked.take() {
                return Err(Stuck::Panicked(text));
            }
            self.step()?;
        }
    }

    /// Runs one ready task until it waits, or moves time.
    fn step(&self) -> Result<(), Stuck> {
        let picked = {
            let state = &mut *self.0.state.lock();
            state.steps += 1;
            if state.steps > STEPS_MAX {
                return Err(Stuck::Endless);
            }
            if state.ready.is_empty() {
                let ((at, _), waker) = state.timers.pop_first().ok_or(Stuck::Deadlock)?;
                state.now = state.now.max(at);
                Err(waker)
            } else {
                let at = self.below(state.ready.len() as u64) as usize;
                let id = state.ready.swap_remove(at);
                let body = state.tasks.get_mut(&id).and_then(|slot| {
                    slot.queued = false;
                    slot.body.take()
                });
                state.mix(id);
                Ok((id, body))
            }
        };
        match picked {
            Err(waker) => waker.wake(),
            Ok((id, Some(body))) => self.advance(id, body),
            Ok((_, None)) => {}
        }
        Ok(())
    }

    fn advance(&self, id: u64, mut body: Body) {
        let waker = Waker::from(Arc::new(Wakes { exec: Arc::downgrade(&self.0), id }));
        let polled = match &mut body {
            Body::Future(future) => {
                let mut cx = Context::from_waker(&waker);
                catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx).is_ready())).map_err(|p| text_of(p.as_ref()))
            }
            Body::Strand(strand) => match strand.resume(&waker) {
                Yielded::Waits => Ok(false),
                Yielded::Ended => Ok(true),
                Yielded::Panicked(text) => Err(text),
            },
        };
        let finished = {
            let state = &mut *self.0.state.lock();
            let ended = match polled {
                Ok(ended) => ended,
                Err(text) => {
                    state.panicked.get_or_insert(text);
                    true
                }
            };
            if ended {
                state.tasks.remove(&id);
                Some(body)
            } else {
                match state.tasks.get_mut(&id) {
                    Some(slot) => {
                        slot.body = Some(body);
                        None
                    }
                    // It ended its own group.
                    None => Some(body),
                }
            }
        };
        match finished {
            Some(Body::Strand(s)) => s.kill(),
            other => drop(other),
        }
    }
}

fn text_of(payload: &(dyn std::any::Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(s), _) => (*s).to_owned(),
        (_, Some(s)) => s.clone(),
        _ => "a panic without words".to_owned(),
    }
}

impl State {
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
    fn mix(&mut self, word: u64) {
        self.digest = (self.digest ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(5);
    }
}

impl Inner {
    fn add(&self, group: u64, body: Body) {
        let state = &mut *self.state.lock();
        let id = state.fresh();
        state.tasks.insert(id, Slot { group, queued: true, body: Some(body) });
        state.ready.push(id);
    }
}

struct Wakes {
    exec: Weak<Inner>,
    id: u64,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        let Some(exec) = self.exec.upgrade() else { return };
        let state = &mut *exec.state.lock();
        if let Some(slot) = state.tasks.get_mut(&self.id)
            && !slot.queued
        {
            slot.queued = true;
            state.ready.push(self.id);
        }
    }
}

/// Tasks that end together.
#[derive(Clone)]
pub struct Group(Arc<GroupInner>);

struct GroupInner {
    exec: Weak<Inner>,
    id: u64,
    dead: AtomicBool,
}

impl Group {
    fn living(&self) -> Option<Arc<Inner>> {
        self.0.exec.upgrade().filter(|_| !self.0.dead.load(Ordering::SeqCst))
    }
    /// True once it was killed.
    pub fn is_dead(&self) -> bool {
        self.0.dead.load(Ordering::SeqCst)
    }
}

impl Tasks for Group {
    fn spawn(&self, task: Job) {
        if let Some(exec) = self.living() {
            exec.add(self.0.id, Body::Future(task));
        }
    }
    fn blocking(&self, job: Box<dyn FnOnce() + Send>) {
        if let Some(exec) = self.living() {
            exec.add(self.0.id, Body::Strand(Strand::new(job)));
        }
    }
    fn sleep(&self, time: Duration) -> Job {
        Box::pin(Sleep { exec: self.0.exec.clone(), time, timer: None })
    }
    fn block_on(&self, future: Pin<&mut dyn Future<Output = ()>>) {
        strand::block_on(future);
    }
    fn here(&self) -> Option<Arc<dyn Tasks>> {
        None
    }
}

struct Sleep {
    exec: Weak<Inner>,
    time: Duration,
    timer: Option<(Duration, u64)>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(exec) = self.exec.upgrade() else { return Poll::Pending };
        let state = &mut *exec.state.lock();
        let timer = match self.timer {
            Some(timer) => timer,
            None => (state.now.saturating_add(self.time), state.fresh()),
        };
        self.timer = Some(timer);
        if timer.0 <= state.now {
            state.timers.remove(&timer);
            return Poll::Ready(());
        }
        state.timers.insert(timer, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let (Some(timer), Some(exec)) = (self.timer, self.exec.upgrade()) {
            let waker = exec.state.lock().timers.remove(&timer);
            drop(waker);
        }
    }
}

/// How far a machine's wall clock is from the virtual time; it may be moved either way.
#[derive(Default)]
pub struct WallOffset(Mutex<i64>);

impl WallOffset {
    /// Starts at `seconds`.
    pub fn new(seconds: i64) -> Self {
        Self(Mutex::new(seconds))
    }
    /// Moves the clock by `seconds`.
    pub fn jump(&self, seconds: i64) {
        *self.0.lock() += seconds;
    }
}

struct VirtualClock {
    exec: Executor,
    wall: Arc<WallOffset>,
}

impl Clock for VirtualClock {
    fn monotonic(&self) -> Duration {
        self.exec.now()
    }
    fn wall(&self) -> Duration {
        let offset = *self.wall.0.lock();
        let now = self.exec.now();
        if offset >= 0 { now + Duration::from_secs(offset as u64) } else { now.saturating_sub(Duration::from_secs(offset.unsigned_abs())) }
    }
}

#[cfg(test)]
mod tests;
