//! Where a file is cut into chunks.
//!
//! | file length | policy | min / average / max |
//! |---|---|---|
//! | up to [`BLOCK`] (128 KiB) | whole | one chunk |
//! | up to 8 MiB | FastCDC v2020, level 1 | 16 / 64 / 256 KiB |
//! | above | FastCDC v2020, level 1 | 64 / 256 / 1024 KiB ([`CHUNK_MAX`]) |
//!
//! Cut points decide deduplication, not correctness: any reader takes chunks of any length. But a silent change of them halves
//! deduplication against everything stored before, hence the golden test.

use std::ops::Range;

use fastcdc::v2020::{self, Normalization};
use hiloop_types::limits::{BLOCK, CHUNK_MAX, KIB, MIB};

/// Longest file that is cut finely.
const FINE_MAX: u64 = 8 * MIB;

/// How the bytes of a file are cut, chosen by its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutPolicy {
    /// One chunk.
    Whole,
    /// Content-defined, 64 KiB on average.
    Fine,
    /// Content-defined, 256 KiB on average.
    Coarse,
}

impl CutPolicy {
    /// The policy for a file of `len` bytes.
    pub const fn for_len(len: u64) -> Self {
        if len <= BLOCK {
            Self::Whole
        } else if len <= FINE_MAX {
            Self::Fine
        } else {
            Self::Coarse
        }
    }

    /// Minimum, average and maximum length of a chunk in bytes; the last one of a file may be shorter than the minimum.
    pub const fn sizes(self) -> (usize, usize, usize) {
        match self {
            Self::Whole => (BLOCK as usize, BLOCK as usize, BLOCK as usize),
            Self::Fine => ((16 * KIB) as usize, (64 * KIB) as usize, (256 * KIB) as usize),
            Self::Coarse => ((64 * KIB) as usize, (256 * KIB) as usize, CHUNK_MAX as usize),
        }
    }
}

/// Finds cut points in a run of bytes that its caller reads piece by piece. Keeps no bytes and no position: each call looks at
/// the bytes that follow the last cut.
#[derive(Clone, Copy, Debug)]
pub struct Chunker {
    policy: CutPolicy,
    strict: u64,
    loose: u64,
}

impl Chunker {
    /// A chunker for one file.
    pub fn new(policy: CutPolicy) -> Self {
        let (strict, loose) = v2020::select_masks(policy.sizes().1, Normalization::Level1);
        Self { policy, strict, loose }
    }

    /// With this many bytes at hand [`Self::next_cut`] always answers.
    pub const fn longest(&self) -> usize {
        self.policy.sizes().2
    }

    /// Length of the next chunk, which starts at `available[0]`. `None` when more bytes are needed to decide, or, at `eof`, when
    /// none are left. The answer does not depend on how much lies behind the cut.
    ///
    /// Each call scans from the start: offer [`Self::longest`] bytes where they exist.
    pub fn next_cut(&self, available: &[u8], eof: bool) -> Option<usize> {
        let (min, average, max) = self.policy.sizes();
        let cut = match self.policy {
            CutPolicy::Whole => available.len().min(max),
            CutPolicy::Fine | CutPolicy::Coarse => {
                v2020::cut(available, min, average, max, self.strict, self.loose, self.strict << 1, self.loose << 1).1
            }
        };
        // A cut before the end was decided by the bytes in front of it; one at the end only by the end.
        let decided = cut < available.len() || cut == max || eof;
        (decided && cut > 0).then_some(cut)
    }
}

/// Cuts a whole file that is in memory, under the policy for its length.
pub fn cut(data: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let chunker = Chunker::new(CutPolicy::for_len(data.len() as u64));
    let mut from = 0;
    std::iter::from_fn(move || {
        let len = chunker.next_cut(&data[from..], true)?;
        from += len;
        Some(from - len..from)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::noise;

    fn cuts(policy: CutPolicy, data: &[u8], piece: usize) -> Vec<usize> {
        let chunker = Chunker::new(policy);
        let (mut from, mut have, mut out) = (0, 0, Vec::new());
        loop {
            match chunker.next_cut(&data[from..have], have == data.len()) {
                Some(len) => {
                    from += len;
                    out.push(from);
                }
                None if have == data.len() => return out,
                None => have = (have + piece).min(data.len()),
            }
        }
    }

    #[test]
    fn policies_by_length() {
        assert_eq!(CutPolicy::for_len(0), CutPolicy::Whole);
        assert_eq!(CutPolicy::for_len(BLOCK), CutPolicy::Whole);
        assert_eq!(CutPolicy::for_len(BLOCK + 1), CutPolicy::Fine);
        assert_eq!(CutPolicy::for_len(8 * MIB), CutPolicy::Fine);
        assert_eq!(CutPolicy::for_len(8 * MIB + 1), CutPolicy::Coarse);
        assert_eq!(cut(b"").count(), 0);
        assert!(cut(b"abc").eq(std::iter::once(0..3)));
    }

    #[test]
    fn golden_cut_points() {
        assert_eq!(
            cuts(CutPolicy::Fine, &noise(42, 700_000), 700_000),
            [106_594, 181_802, 200_872, 306_095, 372_155, 465_050, 621_080, 663_787, 700_000]
        );
        assert_eq!(cuts(CutPolicy::Coarse, &noise(42, 1_500_000), 1_500_000), [82_550, 200_872, 621_080, 1_040_563, 1_500_000]);
        assert_eq!(cuts(CutPolicy::Fine, &[0; 600_000], 600_000), [262_144, 524_288, 600_000]);
    }

    #[test]
    fn an_insertion_moves_only_near_cuts() {
        let old = noise(5, 4 << 20);
        let mut new = old.clone();
        new.splice(100_000..100_000, *b"inserted");
        let old: Vec<_> = cut(&old).map(|r| blake3::hash(&old[r])).collect();
        let kept = cut(&new).filter(|r| old.contains(&blake3::hash(&new[r.clone()]))).count();
        assert!(kept + 4 >= old.len(), "{kept} of {}", old.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn pieces_do_not_matter_and_bounds_hold(seed: u64, len in 1usize..2_000_000, piece in 10_000usize..400_000, coarse: bool) {
            let policy = if coarse { CutPolicy::Coarse } else { CutPolicy::Fine };
            let data = noise(seed, len);
            let found = cuts(policy, &data, piece);
            prop_assert_eq!(&found, &cuts(policy, &data, len));
            let (min, _, max) = policy.sizes();
            let mut from = 0;
            for to in &found {
                prop_assert!(to - from <= max && (to - from >= min || *to == len));
                from = *to;
            }
            prop_assert_eq!(from, len);
        }
    }
}
