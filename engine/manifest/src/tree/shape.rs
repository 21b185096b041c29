//! Where nodes end. Everything here is part of the format: a change makes old and new trees share nothing.

use hiloop_types::limits::KIB;

/// Bytes that a node's entries may take: plain encoding without places (which do not exist yet when the shape is decided).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// A node does not end before it has this many bytes.
    min: u64,
    /// Behind the minimum it ends after this many bytes on average.
    spread: u64,
    /// It ends with the entry that reaches this many bytes. One more entry must still fit the frame limit.
    stop: u64,
}

/// The sizes of leaves and inner nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    leaf: Sizes,
    inner: Sizes,
}

/// The shape of every stored tree.
pub(crate) const STORED: Shape = Shape {
    leaf: Sizes { min: 16 * KIB, spread: 48 * KIB, stop: 184 * KIB },
    inner: Sizes { min: 256 * KIB, spread: 64 * KIB, stop: 448 * KIB },
};

impl Shape {
    /// Small nodes, so that tests see tall trees.
    #[cfg(test)]
    pub(crate) const fn tiny(leaf: u64, inner: u64) -> Self {
        Self {
            leaf: Sizes { min: leaf / 4, spread: leaf - leaf / 4, stop: leaf * 3 },
            inner: Sizes { min: inner / 2, spread: inner / 2, stop: inner * 2 },
        }
    }

    /// Whether a node ends with this entry: `size` and `count` include it, `entry` is its size alone.
    pub(crate) fn ends(&self, level: u8, size: usize, count: usize, key: &[u8], entry: usize) -> bool {
        let sizes = if level == 0 { self.leaf } else { self.inner };
        // With two children or more in each inner node but the last, every level is shorter than the one below.
        if (size as u64) < sizes.min || (level > 0 && count < 2) {
            return false;
        }
        size as u64 >= sizes.stop || u64::from(key_hash(level, key)) * sizes.spread < (entry as u64) << 32
    }
}

/// A well mixed hash of the key, different on each level: eight bytes a step, the rest padded with zeros, the length mixed in.
fn key_hash(level: u8, key: &[u8]) -> u32 {
    let mix = |h: u64, word: u64| {
        let h = (h ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h ^ (h >> 32)
    };
    let mut h = 0x9e37_79b9_7f4a_7c15 ^ (u64::from(level) << 32) ^ key.len() as u64;
    let (words, rest) = key.as_chunks::<8>();
    for word in words {
        h = mix(h, u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    h = mix(mix(h, u64::from_le_bytes(last)), 0xc4ce_b9fe_1a85_ec53);
    (h >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixture_of_the_hash() {
        assert_eq!(
            [key_hash(0, b""), key_hash(0, b"a"), key_hash(1, b"a"), key_hash(0, b"inode-number-17")],
            [2130753070, 2419142041, 2228375342, 862354785]
        );
    }

    #[test]
    fn sequential_keys_end_leaves_at_the_average() {
        let (mut size, mut count, mut sizes) = (0, 0, Vec::new());
        for i in 0..400_000u64 {
            (size, count) = (size + 50, count + 1);
            if STORED.ends(0, size, count, &i.to_be_bytes(), 50) {
                sizes.push(size);
                (size, count) = (0, 0);
            }
        }
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((52 * 1024..72 * 1024).contains(&mean), "{mean}");
        assert!(sizes.iter().all(|s| (16 * 1024..=185 * 1024).contains(s)));
    }
}
