//! One fetch for many readers: the first who asks for a key leads, the others wait for what it brings.
//!
//! The leader makes its result findable (fills the cache) *before* it [finishes](Leader::finish), and whoever becomes a leader
//! looks there first: a reader that missed the flight by a moment then finds the result instead of fetching again. A leader that is dropped
//! without a result (error, panic, cancelled task) wakes its waiters with [`Abandoned`]; one of them asks anew and leads.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

/// The leader went away without a result; ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned;

impl std::fmt::Display for Abandoned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the fetch was given up by whoever led it")
    }
}

impl std::error::Error for Abandoned {}

/// Flights by key. Bounded by what runs: a key stands here only while its leader lives.
pub struct SingleFlight<K: Eq + Hash + Clone, V: Clone> {
    flights: Arc<Mutex<Flights<K, V>>>,
}

type Flights<K, V> = HashMap<K, Arc<Flight<V>>>;
type Callback<V> = Box<dyn FnOnce(Result<V, Abandoned>) + Send>;

struct Flight<V> {
    state: Mutex<State<V>>,
    landed: Condvar,
}

enum State<V> {
    Flying { wakers: BTreeMap<u64, Waker>, callbacks: Vec<Callback<V>>, next: u64 },
    Landed(Result<V, Abandoned>),
}

/// What [`SingleFlight::join`] makes of a caller.
pub enum Joined<K: Eq + Hash + Clone, V: Clone> {
    /// Fetch it, and tell the others.
    Leader(Leader<K, V>),
    /// Somebody is fetching it.
    Waiter(Waiter<V>),
}

/// Duty to bring a result.
#[must_use = "dropping it abandons those who wait"]
pub struct Leader<K: Eq + Hash + Clone, V: Clone> {
    flights: Arc<Mutex<Flights<K, V>>>,
    key: K,
    flight: Arc<Flight<V>>,
    done: bool,
}

/// Share in somebody else's result: a future, or a blocking [wait](Waiter::wait), or a [callback](Waiter::on_landed).
#[must_use = "it does nothing unless awaited"]
pub struct Waiter<V: Clone> {
    flight: Arc<Flight<V>>,
    /// Key of our waker in the flight, once polled.
    ticket: Option<u64>,
}

impl<K: Eq + Hash + Clone, V: Clone> Default for SingleFlight<K, V> {
    fn default() -> Self {
        Self { flights: Arc::default() }
    }
}

impl<K: Eq + Hash + Clone, V: Clone> SingleFlight<K, V> {
    /// No flights.
    pub fn new() -> Self {
        Self::default()
    }

    /// Leads the flight of `key`, or waits for the one that is under way.
    pub fn join(&self, key: K) -> Joined<K, V> {
        let mut flights = self.flights.lock();
        if let Some(flight) = flights.get(&key) {
            return Joined::Waiter(Waiter { flight: flight.clone(), ticket: None });
        }
        let state = State::Flying { wakers: BTreeMap::new(), callbacks: Vec::new(), next: 0 };
        let flight = Arc::new(Flight { state: Mutex::new(state), landed: Condvar::new() });
        flights.insert(key.clone(), flight.clone());
        Joined::Leader(Leader { flights: self.flights.clone(), key, flight, done: false })
    }

    /// Keys that are being fetched.
    pub fn len(&self) -> usize {
        self.flights.lock().len()
    }

    /// Whether nothing is being fetched.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Leader<K, V> {
    /// The key to fetch.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Hands the result to everybody who waits, on this thread.
    pub fn finish(mut self, value: V) {
        self.land(Ok(value));
    }

    fn land(&mut self, result: Result<V, Abandoned>) {
        self.done = true;
        // Out of the table first: whoever comes now starts anew instead of joining what is over.
        self.flights.lock().remove(&self.key);
        let before = std::mem::replace(&mut *self.flight.state.lock(), State::Landed(result.clone()));
        self.flight.landed.notify_all();
        if let State::Flying { wakers, callbacks, .. } = before {
            wakers.into_values().for_each(Waker::wake);
            callbacks.into_iter().for_each(|call| call(result.clone()));
        }
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Drop for Leader<K, V> {
    fn drop(&mut self) {
        if !self.done {
            self.land(Err(Abandoned));
        }
    }
}

impl<V: Clone> Waiter<V> {
    /// Blocks the thread until the leader is done.
    ///
    /// # Errors
    /// [`Abandoned`] when it went away without a result.
    pub fn wait(self) -> Result<V, Abandoned> {
        let mut state = self.flight.state.lock();
        loop {
            match &*state {
                State::Landed(result) => return result.clone(),
                State::Flying { .. } => self.flight.landed.wait(&mut state),
            }
        }
    }

    /// Calls back with the result: on the leader's thread, or here and now if it is there already.
    pub fn on_landed(self, call: impl FnOnce(Result<V, Abandoned>) + Send + 'static) {
        let mut state = self.flight.state.lock();
        match &mut *state {
            State::Flying { callbacks, .. } => callbacks.push(Box::new(call)),
            State::Landed(result) => {
                let result = result.clone();
                drop(state);
                call(result);
            }
        }
    }
}

impl<V: Clone> Future for Waiter<V> {
    type Output = Result<V, Abandoned>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match &mut *this.flight.state.lock() {
            State::Landed(result) => Poll::Ready(result.clone()),
            State::Flying { wakers, next, .. } => {
                let ticket = *this.ticket.get_or_insert_with(|| {
                    *next += 1;
                    *next
                });
                wakers.insert(ticket, cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<V: Clone> Drop for Waiter<V> {
    fn drop(&mut self) {
        // A waiter that was cancelled leaves nothing behind, however long the flight lasts.
        if let Some(ticket) = self.ticket
            && let State::Flying { wakers, .. } = &mut *self.flight.state.lock()
        {
            wakers.remove(&ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    struct Counting(AtomicUsize);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn lead(flights: &SingleFlight<u8, u64>, key: u8) -> Leader<u8, u64> {
        match flights.join(key) {
            Joined::Leader(l) => l,
            Joined::Waiter(_) => panic!("somebody leads {key}"),
        }
    }

    fn follow(flights: &SingleFlight<u8, u64>, key: u8) -> Waiter<u64> {
        match flights.join(key) {
            Joined::Leader(_) => panic!("nobody leads {key}"),
            Joined::Waiter(w) => w,
        }
    }

    #[test]
    fn one_leads_and_all_get_the_result() {
        let flights = SingleFlight::new();
        let leader = lead(&flights, 1);
        assert_eq!(*leader.key(), 1);
        let other = lead(&flights, 2);
        assert_eq!(flights.len(), 2);
        let (blocking, called) = (follow(&flights, 1), Arc::new(Mutex::new(None)));
        let seen = called.clone();
        follow(&flights, 1).on_landed(move |r| *seen.lock() = Some(r));
        std::thread::scope(|s| {
            let waiting = s.spawn(|| blocking.wait());
            leader.finish(7);
            assert_eq!(waiting.join().unwrap(), Ok(7));
        });
        assert_eq!(*called.lock(), Some(Ok(7)));
        other.finish(8);
        assert!(flights.is_empty());
        lead(&flights, 1).finish(9);
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a real thread panics here")]
    fn a_leader_that_goes_away_leaves_nobody_hanging() {
        let flights = SingleFlight::new();
        let leader = lead(&flights, 1);
        let waiters: Vec<_> = (0..3).map(|_| follow(&flights, 1)).collect();
        let panicked = std::thread::spawn(move || {
            let _leader = leader;
            panic!("the fetch broke");
        });
        assert!(panicked.join().is_err());
        assert!(waiters.into_iter().all(|w| w.wait() == Err(Abandoned)));
        lead(&flights, 1).finish(1);
    }

    #[test]
    fn a_future_is_woken_once_and_a_dropped_one_leaves_nothing() {
        let flights = SingleFlight::new();
        let leader = lead(&flights, 1);
        let counting = Arc::new(Counting(AtomicUsize::new(0)));
        let waker = Waker::from(counting.clone());
        let mut cx = Context::from_waker(&waker);
        let (mut kept, mut dropped, late) = (follow(&flights, 1), follow(&flights, 1), follow(&flights, 1));
        for _ in 0..3 {
            assert!(Pin::new(&mut kept).poll(&mut cx).is_pending());
            assert!(Pin::new(&mut dropped).poll(&mut cx).is_pending());
        }
        drop(dropped);
        leader.finish(5);
        assert_eq!(counting.0.load(Ordering::SeqCst), 1);
        assert_eq!(Pin::new(&mut kept).poll(&mut cx), Poll::Ready(Ok(5)));
        // Never polled before, or asked by another way: the result is there at once.
        assert_eq!(late.wait(), Ok(5));
    }

    #[test]
    fn a_callback_may_start_the_next_flight() {
        let flights = Arc::new(SingleFlight::new());
        let leader = lead(&flights, 1);
        let again = flights.clone();
        follow(&flights, 1).on_landed(move |_| lead(&again, 1).finish(2));
        leader.finish(1);
        assert!(flights.is_empty());
    }

    #[test]
    fn many_threads_fetch_once_at_a_time() {
        let flights = SingleFlight::<u8, u64>::new();
        let (running, fetched) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for round in 0..2000u64 {
                        match flights.join(1) {
                            Joined::Leader(leader) => {
                                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two lead at once");
                                fetched.fetch_add(1, Ordering::SeqCst);
                                running.fetch_sub(1, Ordering::SeqCst);
                                if round % 5 == 0 { drop(leader) } else { leader.finish(round) }
                            }
                            Joined::Waiter(w) => drop(w.wait()),
                        }
                    }
                });
            }
        });
        assert!(flights.is_empty() && fetched.load(Ordering::SeqCst) > 0);
    }
}
