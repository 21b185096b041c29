//! The real engine in simulated worlds.

#![allow(clippy::print_stdout, reason = "a person reads what the worlds did")]

mod planted;
mod seeds;
