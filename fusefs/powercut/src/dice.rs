//! Seeded chance: each file and the names draw from a sequence of their own, so that one does not move the other.

use hiloop_env::Env;

pub(crate) struct Dice(Env);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Env::simulated(seed).0)
    }
    /// The sequence of `part` under a seed.
    pub(crate) fn part(seed: u64, part: u64) -> Self {
        Self::new(seed ^ part.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }
    /// A number below `n`, which is not 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0.random_u64() % n
    }
    pub(crate) fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}
