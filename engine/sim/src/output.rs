//! All that the program prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use hiloop_sim::explore::Outcome;
use hiloop_sim::rules::Rule;
use hiloop_sim::scenario::Scenario;
use hiloop_sim::world;
use hiloop_types::Error;

/// What an exploration found.
pub fn outcome(scenario: &Scenario, outcome: &Outcome) {
    let result = if outcome.failure.is_none() { "holds" } else { "FAILS" };
    let Outcome { states, transitions, ends, .. } = outcome;
    println!("{result}  {:<18} {states:>8} states {transitions:>9} transitions {ends:>6} ends   {}", scenario.name, scenario.about);
    if let Some(failure) = &outcome.failure {
        println!("    {}", failure.violation.0);
        for (i, step) in failure.trace.iter().enumerate() {
            println!("    {:>3}. {step}", i + 1);
        }
    }
}

/// The table of rules.
pub fn rules() {
    for rule in Rule::ALL {
        println!("{:<28} {:<16} {}", rule.key(), rule.section(), rule.scenario());
    }
}

/// What happened in a world.
pub fn world(seed: u64, outcome: &world::Outcome) {
    for line in &outcome.trace {
        println!("{line}");
    }
    for (what, count) in &outcome.counts {
        println!("{count:>8} {what}");
    }
    let result = outcome.violation.as_deref().unwrap_or("holds");
    println!("seed {seed}, {} steps, digest {:016x}: {result}", outcome.steps, outcome.digest);
}

/// A seed that is none.
pub fn went_two_ways(seed: u64) {
    println!("seed {seed} went two ways: something outside the seams had a say");
}

/// Progress, now and then.
pub fn progress(done: u64, of: u64) {
    if done.is_multiple_of(1000) || done == of {
        println!("{done} of {of} seeds hold");
    }
}

/// An error.
pub fn error(e: &Error) {
    eprintln!("hiloop-sim: {e}");
}
