//! Running things: tasks, jobs that may block, sleeping, waiting. The real ones are tokio's; the simulator runs all of them on one
//! schedule that a seed decides (`hiloop_sim::executor`).

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::Env;

/// A future without a result that may move between threads.
pub type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What runs tasks. [`Env`]'s methods are its comfortable side.
pub trait Tasks: Send + Sync {
    /// Starts a task; it runs until it ends or the whole schedule does.
    fn spawn(&self, task: Job);
    /// Runs `job` where it may block.
    fn blocking(&self, job: Box<dyn FnOnce() + Send>);
    /// Is ready after `time`.
    fn sleep(&self, time: Duration) -> Job;
    /// Runs `future` to its end on this thread, which may block.
    fn block_on(&self, future: Pin<&mut dyn Future<Output = ()>>);
    /// The same, bound to where the caller runs now, where that is not settled yet.
    fn here(&self) -> Option<Arc<dyn Tasks>>;
}

/// A time ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

/// A task or job ended without a result: it panicked, or whatever ran it is shutting down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Died;

impl fmt::Display for Died {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it panicked, or the process is shutting down")
    }
}

impl std::error::Error for Died {}

/// The result of something that was started. Dropping it lets the task run on.
#[derive(Debug)]
pub struct Task<T>(oneshot::Receiver<T>);

impl<T> Task<T> {
    /// True where the result is there.
    pub fn is_finished(&self) -> bool {
        !self.0.is_empty()
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, Died>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|r| r.map_err(|_| Died))
    }
}

impl Env {
    /// The same surroundings, whose tasks run where the caller runs now: for whoever later starts tasks from other threads.
    #[must_use]
    pub fn here(&self) -> Self {
        match self.tasks.here() {
            Some(tasks) => Self { tasks, ..self.clone() },
            None => self.clone(),
        }
    }
    /// Starts a task.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> Task<T> {
        let (tx, rx) = oneshot::channel();
        // Nobody waiting is no failure.
        self.tasks.spawn(Box::pin(async move { drop(tx.send(task.await)) }));
        Task(rx)
    }
    /// Runs `job` on a thread that may block.
    pub fn blocking<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Task<T> {
        let (tx, rx) = oneshot::channel();
        self.tasks.blocking(Box::new(move || drop(tx.send(job()))));
        Task(rx)
    }
    /// Waits on this thread, which may block; never on one that runs tasks.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut result = None;
        let work = async { result = Some(future.await) };
        self.tasks.block_on(pin!(work));
        result.expect("block_on returns when the future has ended")
    }
    /// Is ready after `time`.
    pub fn sleep(&self, time: Duration) -> Job {
        self.tasks.sleep(time)
    }
    /// Runs `future` for at most `time`. One that is ready at once costs nothing more.
    ///
    /// # Errors
    /// [`Elapsed`], and the future is dropped where it stands.
    pub async fn timeout<F: Future>(&self, time: Duration, future: F) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        let mut end: Option<Job> = None;
        poll_fn(|cx| {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(value));
            }
            end.get_or_insert_with(|| self.sleep(time)).as_mut().poll(cx).map(|()| Err(Elapsed))
        })
        .await
    }
}

/// Tokio: the runtime that was current when it was bound, else the one that is current when it is used.
pub(crate) struct Tokio(pub(crate) Option<Handle>);

impl Tokio {
    fn handle(&self) -> Handle {
        self.0.clone().unwrap_or_else(Handle::current)
    }
}

#[allow(clippy::disallowed_methods, reason = "the one place that sleeps for real")]
impl Tasks for Tokio {
    fn spawn(&self, task: Job) {
        self.handle().spawn(task);
    }
    fn blocking(&self, job: Box<dyn FnOnce() + Send>) {
        self.handle().spawn_blocking(job);
    }
    fn sleep(&self, time: Duration) -> Job {
        // On a runtime its own timer, so that sleeping does not depend on another one.
        let elsewhere = Handle::try_current().is_err().then(|| self.handle());
        let _inside = elsewhere.as_ref().map(Handle::enter);
        Box::pin(tokio::time::sleep(time))
    }
    fn block_on(&self, future: Pin<&mut dyn Future<Output = ()>>) {
        self.handle().block_on(future);
    }
    fn here(&self) -> Option<Arc<dyn Tasks>> {
        match &self.0 {
            Some(_) => None,
            None => Handle::try_current().ok().map(|h| Arc::new(Self(Some(h))) as Arc<dyn Tasks>),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_environment_works_from_any_thread() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let env = runtime.block_on(async { Env::real().here() });
        let task = env.spawn(async { 1 });
        let job = env.blocking(|| 2);
        assert_eq!(env.block_on(async { (task.await, job.await) }), (Ok(1), Ok(2)));
        assert_eq!(env.block_on(env.timeout(Duration::ZERO, std::future::pending::<()>())), Err(Elapsed));
        assert_eq!(env.block_on(env.timeout(Duration::ZERO, async { 3 })), Ok(3), "what is ready is not cut off");
        let died = env.blocking(|| panic!("on purpose"));
        assert_eq!(env.block_on(died), Err::<(), _>(Died));
    }
}
