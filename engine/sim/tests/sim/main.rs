//! The real engine in simulated worlds.

mod planted;
mod seeds;
