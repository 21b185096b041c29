//! Seeds with all guards in force hold, twice, and come across what they are there for.

use std::collections::BTreeMap;

use hiloop_sim::world;

/// Seeds of a run; `hiloop-sim run` goes further.
const SEEDS: u64 = 200;

/// What the seeds must come across together.
const COMES_ACROSS: [&str; 28] = [
    "attach with a tail",
    "change",
    "clean release",
    "clock jump",
    "collected pack",
    "collection",
    "deleted snapshot",
    "deleted workspace",
    "failed flush",
    "flipped body",
    "flush",
    "fork",
    "kill",
    "look at a snapshot",
    "lost answer",
    "misled writer",
    "miss of a change",
    "power cut",
    "power cut between two writes",
    "power cut while starting",
    "recovered tail",
    "refused request",
    "repacked pack",
    "replicated snapshot",
    "rotten cache",
    "separation",
    "silence",
    "writer that waited",
];

#[test]
fn every_seed_holds_and_repeats() {
    let mut total: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..SEEDS {
        let first = world::of_seed(seed, false);
        if let Some(broken) = &first.violation {
            panic!("seed {seed}: {broken}\n`cargo run -p hiloop-sim -- replay {seed}` shows how it came to that");
        }
        let second = world::of_seed(seed, false);
        assert_eq!(first, second, "seed {seed} went two ways");
        for (what, count) in first.counts {
            *total.entry(what).or_default() += count;
        }
    }
    println!("{total:#?}");
    // The run only proves something if it came across each of these.
    for what in COMES_ACROSS {
        assert!(total.get(what).is_some_and(|n| *n >= 5), "hardly any {what}: {:?}", total.get(what));
    }
}
