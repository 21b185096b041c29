//! Every target over its seeds, which it must accept, and over the inputs that once broke a rule.

#![allow(clippy::unwrap_used, reason = "a test ends where it is surprised")]

use std::fs;
use std::path::{Path, PathBuf};

use hiloop_fuzz::{FLOOR, TARGETS, bounded};

fn inputs(folder: &str, target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(target);
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|p| (p.clone(), fs::read(p).unwrap())).collect()
}

#[test]
fn every_target_accepts_its_seeds() {
    for (name, target) in TARGETS {
        let seeds = inputs("seeds", name);
        assert!(!seeds.is_empty(), "{name} has no seed");
        for (path, bytes) in seeds {
            assert!(target(&bytes), "{} is refused", path.display());
        }
    }
}

#[test]
fn what_once_broke_a_rule_breaks_none() {
    for (name, target) in TARGETS {
        for (_, bytes) in inputs("regressions", name) {
            target(&bytes);
        }
    }
}

/// Cut short and with any one bit wrong: most of what a disk or a network does to bytes.
#[test]
fn damaged_seeds_break_no_rule() {
    for (name, target) in TARGETS {
        for (_, bytes) in inputs("seeds", name) {
            // The long ones at some places only.
            let step = bytes.len() / 200 + 1;
            for at in (0..bytes.len()).step_by(step) {
                target(&bytes[..at]);
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << (at % 8);
                target(&flipped);
            }
        }
    }
}

#[test]
fn a_decoder_that_believes_a_length_is_found_out() {
    // What is not looked at would not be allocated at all.
    let taken = |bytes: usize| drop(std::hint::black_box(vec![0u8; bytes]));
    bounded(&[0; 100], 1, || taken(FLOOR));
    let greedy = std::panic::catch_unwind(|| bounded(&[0; 100], 1, || taken(FLOOR + 101)));
    assert!(greedy.is_err());
    // What is let go of before the next is taken counts once.
    bounded(&[], 0, || (0..10).for_each(|_| taken(FLOOR)));
}
