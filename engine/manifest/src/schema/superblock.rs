//! The superblock: what holds for a whole workspace.

use hiloop_types::{Result, WriterEpoch};

use super::{Reader, Writer};

const VERSION: u8 = 1;

/// Counts that `statfs` and the quota need, kept exact by every change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Totals {
    /// Inodes, orphans included.
    pub inodes: u64,
    /// Bytes that are not holes, orphans included.
    pub bytes: u64,
}

/// The superblock of a manifest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Super {
    /// Key of the entry-name hash; part of the tree, since forks share its nodes.
    pub name_key: [u8; 32],
    /// Counts.
    pub totals: Totals,
    /// The next inode number at the time of the publish.
    pub next_ino: u64,
    /// Epoch that published this root.
    pub epoch: WriterEpoch,
}

impl Super {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(64);
        w.u8(VERSION);
        w.raw(&self.name_key);
        for v in [self.totals.inodes, self.totals.bytes, self.next_ino, self.epoch.0] {
            w.uint(v);
        }
        w.0
    }
    /// Reads the stored form.
    pub fn decode(b: &[u8]) -> Result<Self> {
        let mut r = Reader::new(b, "superblock");
        let version = r.u8("version")?;
        if version != VERSION {
            return Err(r.bad("version", version).hint("a newer hiloop wrote this workspace; upgrade this one"));
        }
        let s = Self {
            name_key: r.array("name_key")?,
            totals: Totals { inodes: r.uint("inodes")?, bytes: r.uint("bytes")? },
            next_ino: r.uint("next_ino")?,
            epoch: WriterEpoch(r.uint("epoch")?),
        };
        r.end()?;
        Ok(s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_version_check() {
        let s = Super { name_key: [7; 32], totals: Totals { inodes: 3, bytes: 500 }, next_ino: 12, epoch: WriterEpoch(2) };
        let mut b = s.encode();
        assert_eq!(b.len(), 1 + 32 + 1 + 2 + 1 + 1);
        assert_eq!(Super::decode(&b).unwrap(), s);
        b[0] = 2;
        assert!(Super::decode(&b).unwrap_err().to_string().contains("version 2"));
    }
}
