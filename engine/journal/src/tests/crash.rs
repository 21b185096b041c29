//! Seeded lives with power cuts, kills, failed flushes and cuts during recovery; and the proof that the checker sees broken rules.

use super::world::{Tally, World};
use crate::options::Fault;

/// Enough for the rarest planted fault (`TrustAnchor`: a failed release, a kill and a cut in the recovery after it).
const SEEDS: u64 = 2500;

fn life(seed: u64, fault: Option<Fault>, total: &mut Tally) -> Result<(), String> {
    let mut world = World::new(seed, fault);
    let result = world.run(6);
    let t = world.tally;
    total.cuts += t.cuts;
    total.kills += t.kills;
    total.cuts_in_recovery += t.cuts_in_recovery;
    total.failed_flushes += t.failed_flushes;
    total.rewritten += t.rewritten;
    total.mismatches += t.mismatches;
    total.uncertain += t.uncertain;
    total.lost += t.lost;
    total.released += t.released;
    total.freed += t.freed;
    total.refused += t.refused;
    result
}

#[test]
fn committed_records_survive_every_life() {
    let mut total = Tally::default();
    for seed in 0..SEEDS {
        if let Err(violation) = life(seed, None, &mut total) {
            panic!("seed {seed}: {violation}");
        }
    }
    println!("{total:?}");
    // The run only proves something if it came across each of these.
    for (what, count) in [
        ("cuts", total.cuts),
        ("kills", total.kills),
        ("cuts during recovery", total.cuts_in_recovery),
        ("failed flushes", total.failed_flushes),
        ("rewritten records", total.rewritten),
        ("staging mismatches", total.mismatches),
        ("holes", total.uncertain),
        ("lost records", total.lost),
        ("releases", total.released),
        ("freed slabs", total.freed),
        ("refusals of a full disk", total.refused),
    ] {
        assert!(count > 20, "only {count} {what}");
    }
}

#[test]
fn a_life_is_the_same_each_time() {
    let run = |seed| {
        let mut total = Tally::default();
        let result = life(seed, None, &mut total);
        (format!("{total:?}"), result)
    };
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed));
    }
}

/// Each rule dropped must be noticed: a checker that never fails proves nothing.
#[test]
fn the_checker_sees_every_planted_fault() {
    for fault in [
        Fault::JournalBeforeStaging,
        Fault::SkipJournalFlush,
        Fault::SkipStagingCheck,
        Fault::SkipRewrite,
        Fault::TrustAnchor,
        Fault::SkipDirectorySync,
        Fault::RetryFailedFlush,
        Fault::SkipAnchorAtRelease,
    ] {
        let seen = (0..SEEDS).find_map(|seed| life(seed, Some(fault), &mut Tally::default()).err().map(|v| (seed, v)));
        match seen {
            Some((seed, violation)) => println!("{fault:?}: seed {seed}: {violation}"),
            None => panic!("{fault:?} was not noticed"),
        }
    }
}
