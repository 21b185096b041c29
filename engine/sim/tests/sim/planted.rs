//! A guard counts once it has been seen to fail: each is taken away below the engine, and the checker must notice.

use hiloop_sim::world::{self, planted::Lie};

/// Seeds within which the absence of any guard shows.
const SEEDS: u64 = 60;

fn noticed(lie: Lie, expected: &str) {
    let mut others = Vec::new();
    for seed in 0..SEEDS {
        match world::without(lie, seed, false).violation {
            Some(broken) if broken.contains(expected) => return println!("{lie}: seed {seed}: {broken}"),
            other => others.extend(other),
        }
    }
    panic!("{lie} was not noticed within {SEEDS} seeds; other promises that broke: {others:#?}");
}

#[test]
fn shipped_before_flush() {
    noticed(Lie::ShippedBeforeFlush, "shipped what was not flushed");
}
#[test]
fn answered_before_the_record_is_whole() {
    noticed(Lie::AnsweredBeforeWhole, "what its own node found again");
}
#[test]
fn swept_without_the_sequence_rule() {
    noticed(Lie::NoSequenceRule, "gone");
}
#[test]
fn forked_without_reading_again() {
    noticed(Lie::SecondReadFromMemory, "is gone");
}
#[test]
fn epoch_ignored() {
    noticed(Lie::EpochIgnored, "a fenced writer moved the head");
}
#[test]
fn served_unverified() {
    noticed(Lie::Unverified, "reads");
}
#[test]
fn directory_not_flushed() {
    noticed(Lie::NoDirectoryFlush, "the journal of");
}
#[test]
fn staging_overwritten_in_place() {
    noticed(Lie::StagingInPlace, "not what was written");
}
#[test]
fn index_forgets_what_it_flushed() {
    noticed(Lie::IndexForgets, "was not taken up again");
}
#[test]
fn listings_end_early() {
    noticed(Lie::ListingsEndEarly, "is gone");
}
