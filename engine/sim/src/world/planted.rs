//! Lies of the parts below the engine, each of which takes one guard away: the checker must see every one of them.
//!
//! None of them is a switch in the engine. What the engine would do without a guard is brought about below it: by a disk that answers a
//! flush too early, a store that ignores a condition, a collector's view without sequences.

use std::fmt;

/// A guard that is made void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// 2.6: flushes are answered before they are done, and nobody but the replicator waits for one: it ships what is not flushed.
    ShippedBeforeFlush,
    /// 2.2: a record is answered while its bytes are on their way to the page cache: a kill loses them.
    AnsweredBeforeWhole,
    /// 7.4: the collector takes packs above a head's sequence for garbage.
    NoSequenceRule,
    /// 7.5: a fork that reads its source again gets what it got before.
    SecondReadFromMemory,
    /// 3.1: the store ignores which head a swap replaces, so a writer of an old epoch goes on.
    EpochIgnored,
    /// 5.4: the cache's checksums hold whatever the bytes are.
    Unverified,
    /// Names of new files are never flushed.
    NoDirectoryFlush,
    /// 2.3: staged ranges are written over others that are still named.
    StagingInPlace,
    /// 2.7: the index answers a flush and keeps nothing.
    IndexForgets,
    /// 7.4: listings other than that of packs end early and without an error.
    ListingsEndEarly,
}

impl Lie {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::ShippedBeforeFlush,
        Self::AnsweredBeforeWhole,
        Self::NoSequenceRule,
        Self::SecondReadFromMemory,
        Self::EpochIgnored,
        Self::Unverified,
        Self::NoDirectoryFlush,
        Self::StagingInPlace,
        Self::IndexForgets,
        Self::ListingsEndEarly,
    ];

    /// Its name on the command line.
    pub fn key(self) -> &'static str {
        match self {
            Self::ShippedBeforeFlush => "shipped-before-flush",
            Self::AnsweredBeforeWhole => "answered-before-whole",
            Self::NoSequenceRule => "no-sequence-rule",
            Self::SecondReadFromMemory => "fork-without-re-read",
            Self::EpochIgnored => "epoch-ignored",
            Self::Unverified => "served-unverified",
            Self::NoDirectoryFlush => "no-directory-flush",
            Self::StagingInPlace => "staging-in-place",
            Self::IndexForgets => "index-forgets",
            Self::ListingsEndEarly => "listings-end-early",
        }
    }
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}
