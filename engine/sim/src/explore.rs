//! Breadth-first exploration of all states of a small machine.
//!
//! Visited states are remembered by a 128-bit fingerprint, not whole: a collision (which would hide a state) has a chance below 2^-80
//! for a million states. Steps are produced in a fixed order and fingerprints use fixed keys, so two runs count the same.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// States explored before a scenario is called too large: a bug of the scenario, not of the protocol.
pub const STATES_MAX: usize = 2_000_000;

/// One step, for people: who did what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Actor.
    pub who: &'static str,
    /// What it did.
    pub what: &'static str,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<12} {}", self.who, self.what)
    }
}

/// A promise that does not hold in some state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

/// Successors of one state.
pub type Steps<S> = Vec<(Step, S)>;

/// Something with finitely many states.
pub trait Machine {
    /// A state; equal states have equal futures.
    type State: Clone + Hash;
    /// Where it starts.
    fn start(&self) -> Self::State;
    /// All that can happen next.
    fn steps(&self, state: &Self::State, out: &mut Steps<Self::State>);
    /// What must hold in every state.
    ///
    /// # Errors
    /// The promise that is broken.
    fn check(&self, state: &Self::State) -> Result<(), Violation>;
    /// What must hold in a state where nothing can happen any more.
    ///
    /// # Errors
    /// The promise that is broken.
    fn check_end(&self, state: &Self::State) -> Result<(), Violation>;
}

/// A violation and a shortest way to it.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// What is broken.
    pub violation: Violation,
    /// Steps from the start.
    pub trace: Vec<Step>,
}

/// Result of an exploration.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Distinct states seen.
    pub states: usize,
    /// Transitions taken.
    pub transitions: usize,
    /// States in which nothing can happen any more.
    pub ends: usize,
    /// The first violation, where there is one. The exploration stopped there.
    pub failure: Option<Counterexample>,
}

/// Explores a machine until all states are seen or one is wrong.
///
/// A machine with more than [`STATES_MAX`] states is answered with a failure that says so.
pub fn explore<M: Machine>(machine: &M) -> Outcome {
    let mut seen: HashMap<u128, u32, BuildHasherDefault<Taken>> = HashMap::default();
    // How each state was reached first: the state before it, and the step.
    let mut reached: Vec<(u32, Option<Step>)> = Vec::new();
    let mut queue: VecDeque<(u32, M::State)> = VecDeque::new();
    let mut outcome = Outcome { states: 0, transitions: 0, ends: 0, failure: None };

    let start = machine.start();
    seen.insert(fingerprint(&start), 0);
    reached.push((0, None));
    queue.push_back((0, start));
    let mut steps = Vec::new();
    while let Some((number, state)) = queue.pop_front() {
        outcome.states = seen.len();
        if let Err(violation) = machine.check(&state) {
            outcome.failure = Some(Counterexample { violation, trace: trace(&reached, number) });
            return outcome;
        }
        steps.clear();
        machine.steps(&state, &mut steps);
        if steps.is_empty() {
            outcome.ends += 1;
            if let Err(violation) = machine.check_end(&state) {
                outcome.failure = Some(Counterexample { violation, trace: trace(&reached, number) });
                return outcome;
            }
        }
        for (step, next) in steps.drain(..) {
            outcome.transitions += 1;
            let free = reached.len() as u32;
            if *seen.entry(fingerprint(&next)).or_insert(free) == free {
                reached.push((number, Some(step)));
                queue.push_back((free, next));
            }
        }
        if seen.len() > STATES_MAX {
            let violation = Violation(format!("the scenario has more than {STATES_MAX} states"));
            outcome.failure = Some(Counterexample { violation, trace: Vec::new() });
            return outcome;
        }
    }
    outcome.states = seen.len();
    outcome
}

fn trace(reached: &[(u32, Option<Step>)], mut number: u32) -> Vec<Step> {
    let mut steps = Vec::new();
    while let (before, Some(step)) = reached[number as usize] {
        steps.push(step);
        number = before;
    }
    steps.reverse();
    steps
}

fn fingerprint<T: Hash>(state: &T) -> u128 {
    let mut lanes = Lanes { low: 0x243f_6a88_85a3_08d3, high: 0x1319_8a2e_0370_7344 };
    state.hash(&mut lanes);
    u128::from(fold(lanes.low, 0xa409_3822_299f_31d1)) << 64 | u128::from(fold(lanes.high, 0x082e_fa98_ec4e_6c89))
}

/// Multiplies and folds the halves of the product onto each other.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// Two independent digests at once, with fixed keys: most of an exploration is hashing states, for which the standard library's hash
/// against attackers is twice as slow.
struct Lanes {
    low: u64,
    high: u64,
}

impl Lanes {
    fn word(&mut self, word: u64) {
        self.low = fold(self.low ^ word, 0x9e37_79b9_7f4a_7c15).wrapping_add(0x4528_21e6_38d0_1377);
        self.high = fold(self.high ^ word.rotate_left(32), 0xc2b2_ae3d_27d4_eb4f).wrapping_add(0xbe54_66cf_34e9_0c6c);
    }
}

impl Hasher for Lanes {
    fn finish(&self) -> u64 {
        self.low
    }
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.word(u64::from_le_bytes(word));
        }
        self.word(bytes.len() as u64);
    }
    fn write_u8(&mut self, n: u8) {
        self.word(u64::from(n));
    }
    fn write_u32(&mut self, n: u32) {
        self.word(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.word(n);
    }
    fn write_usize(&mut self, n: usize) {
        self.word(n as u64);
    }
    fn write_isize(&mut self, n: isize) {
        self.word(n as u64);
    }
}

/// A fingerprint is a digest already.
#[derive(Default)]
struct Taken(u64);

impl Hasher for Taken {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = self.0 << 8 | u64::from(*b);
        }
    }
    fn write_u128(&mut self, n: u128) {
        self.0 = n as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts up by one or two; seven is wrong, and so is an end other than `end`.
    struct Counter {
        wrong: u8,
        end: u8,
    }

    impl Machine for Counter {
        type State = u8;
        fn start(&self) -> u8 {
            0
        }
        fn steps(&self, s: &u8, out: &mut Steps<u8>) {
            for (what, by) in [("one", 1), ("two", 2)] {
                if s + by <= 10 {
                    out.push((Step { who: "counter", what }, s + by));
                }
            }
        }
        fn check(&self, s: &u8) -> Result<(), Violation> {
            if *s == self.wrong { Err(Violation("wrong".into())) } else { Ok(()) }
        }
        fn check_end(&self, s: &u8) -> Result<(), Violation> {
            if *s == self.end { Ok(()) } else { Err(Violation("ended early".into())) }
        }
    }

    #[test]
    fn all_states_are_seen_once() {
        let o = explore(&Counter { wrong: 99, end: 10 });
        assert!(o.failure.is_none());
        assert_eq!((o.states, o.transitions, o.ends), (11, 19, 1));
    }

    #[test]
    fn the_trace_is_a_shortest_one() {
        let failure = explore(&Counter { wrong: 7, end: 10 }).failure.unwrap();
        assert_eq!(failure.trace.len(), 4);
        assert_eq!(failure.violation, Violation("wrong".into()));
    }

    #[test]
    fn an_end_is_checked() {
        assert_eq!(explore(&Counter { wrong: 99, end: 9 }).failure.unwrap().violation, Violation("ended early".into()));
    }
}
