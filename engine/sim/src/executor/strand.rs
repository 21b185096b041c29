//! A blocking job: a thread that runs only while the conductor waits for it.

use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Waker};

use parking_lot::{Condvar, Mutex};

type Work = Box<dyn FnOnce() + Send>;

/// How a strand gave the turn back.
pub(super) enum Yielded {
    /// It waits for its waker.
    Waits,
    /// It is through.
    Ended,
    /// It panicked.
    Panicked(String),
}

pub(super) struct Strand {
    turn: Mutex<Turn>,
    changed: Condvar,
}

enum Turn {
    /// Not started.
    New(Work),
    /// The job runs.
    Job(Waker),
    /// The conductor runs.
    Conductor(Yielded),
    /// The job is to end where it stands.
    Doomed,
}

/// What unwinds a job that is killed.
struct Killed;

thread_local! {
    /// The strand whose job this thread runs.
    static CURRENT: RefCell<Option<(Arc<Strand>, Waker)>> = const { RefCell::new(None) };
}

/// How a thread is given its next strand.
type Giver = Sender<(Arc<Strand>, Work)>;

/// Threads that wait for a strand; they outlive worlds, since making one costs more than a step.
static IDLE: LazyLock<Mutex<Vec<Giver>>> = LazyLock::new(Mutex::default);

impl Strand {
    pub(super) fn new(job: Work) -> Arc<Self> {
        Arc::new(Self { turn: Mutex::new(Turn::New(job)), changed: Condvar::new() })
    }

    /// Lets the job run until it waits or ends.
    pub(super) fn resume(self: &Arc<Self>, waker: &Waker) -> Yielded {
        let mut turn = self.turn.lock();
        match std::mem::replace(&mut *turn, Turn::Job(waker.clone())) {
            Turn::New(job) => {
                let mut work = (self.clone(), job);
                loop {
                    let thread = IDLE.lock().pop().unwrap_or_else(start_thread);
                    match thread.send(work) {
                        Ok(()) => break,
                        Err(unsent) => work = unsent.0,
                    }
                }
            }
            _ => {
                self.changed.notify_all();
            }
        }
        loop {
            match &mut *turn {
                Turn::Conductor(Yielded::Waits) => return Yielded::Waits,
                Turn::Conductor(ended) => return std::mem::replace(ended, Yielded::Ended),
                _ => {}
            }
            self.changed.wait(&mut turn);
        }
    }

    /// Ends a job that waits, or was not started. The others have ended.
    pub(super) fn kill(self: &Arc<Self>) {
        let mut turn = self.turn.lock();
        match std::mem::replace(&mut *turn, Turn::Doomed) {
            Turn::New(job) => {
                drop(turn);
                drop(job);
            }
            Turn::Conductor(Yielded::Waits) => {
                self.changed.notify_all();
                while matches!(*turn, Turn::Doomed) {
                    self.changed.wait(&mut turn);
                }
            }
            ended => *turn = ended,
        }
    }

    /// Gives the turn to the conductor and waits to get it back.
    fn give_back(&self) -> Waker {
        let mut turn = self.turn.lock();
        *turn = Turn::Conductor(Yielded::Waits);
        self.changed.notify_all();
        loop {
            match &*turn {
                Turn::Job(waker) => return waker.clone(),
                Turn::Doomed => {
                    drop(turn);
                    resume_unwind(Box::new(Killed));
                }
                _ => self.changed.wait(&mut turn),
            }
        }
    }

    fn end(&self, result: Result<(), Box<dyn Any + Send>>) {
        let yielded = match result {
            Ok(()) => Yielded::Ended,
            Err(p) if p.is::<Killed>() => Yielded::Ended,
            Err(p) => Yielded::Panicked(super::text_of(p.as_ref())),
        };
        *self.turn.lock() = Turn::Conductor(yielded);
        self.changed.notify_all();
    }
}

fn start_thread() -> Sender<(Arc<Strand>, Work)> {
    let (tx, rx) = channel::<(Arc<Strand>, Work)>();
    let own = tx.clone();
    let body = move || {
        while let Ok((strand, work)) = rx.recv() {
            let waker = match &*strand.turn.lock() {
                Turn::Job(waker) => waker.clone(),
                _ => unreachable!("a strand is started by its first turn"),
            };
            CURRENT.set(Some((strand.clone(), waker)));
            let result = catch_unwind(AssertUnwindSafe(work));
            CURRENT.set(None);
            IDLE.lock().push(own.clone());
            strand.end(result);
        }
    };
    std::thread::Builder::new().name("strand".into()).spawn(body).expect("a thread for a blocking job");
    tx
}

/// Waits within a job.
pub(super) fn block_on(mut future: Pin<&mut dyn Future<Output = ()>>) {
    let (strand, mut waker) = CURRENT.with_borrow(Clone::clone).expect("only a blocking job may wait for a future");
    while future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        waker = strand.give_back();
    }
}
