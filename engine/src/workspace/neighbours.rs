//! Reading many small files one after another: whoever unpacks, copies or compiles a tree reads files in the order in which they were
//! packed, each a chunk of its own. Once two misses follow each other in a pack, the next chunks come with the one that is wanted.
//!
//! A window grows only when the one before was read to its end, so what is fetched in vain is at most the last window, however the
//! reading goes on; reads in no order fetch nothing more than they want. What is fetched ahead, and of that was read, is counted.

use std::collections::HashMap;

use hiloop_manifest::FrameLoc;
use hiloop_manifest::schema::ChunkRef;
use hiloop_types::{ChunkId, PackId, limits};

/// First window, bytes in the pack; doubles with each miss that follows the last.
const FIRST: u64 = 64 * limits::KIB;
/// Largest window, bytes.
const MAX: u64 = 2 * limits::MIB;
/// Chunks in a window: tiny ones cost more to keep than to fetch.
pub(super) const CHUNKS: usize = 256;
/// A miss at most this far behind the last follows it: what lies between may be in memory, or be read by nobody.
const GAP: u64 = 64 * limits::KIB;
/// Packs whose reading is followed.
const PACKS: usize = 32;
/// Chunks fetched ahead that were not read yet, as far as they are remembered.
const PENDING: usize = 16 * CHUNKS;

/// The reading of one pack.
#[derive(Clone, Copy)]
struct Reading {
    /// Where what was fetched last ends.
    end: u64,
    window: u64,
}

/// Chunks fetched ahead for small files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ReadAhead {
    /// Bytes in packs that were fetched ahead.
    pub fetched_bytes: u64,
    /// Of these, bytes that were read later.
    pub used_bytes: u64,
}

/// What a workspace remembers of the order of its misses.
#[derive(Default)]
pub(crate) struct Neighbours {
    packs: HashMap<PackId, Reading>,
    pending: HashMap<ChunkId, u32>,
    counts: ReadAhead,
}

fn end(at: &FrameLoc) -> u64 {
    u64::from(at.offset) + u64::from(at.stored_len)
}

impl Neighbours {
    /// How far behind a chunk that is missed now it is worth to read; 0 where the miss follows no other.
    pub(super) fn window(&mut self, missed: &FrameLoc) -> u64 {
        if self.packs.len() >= PACKS && !self.packs.contains_key(&missed.pack) {
            self.packs.clear();
        }
        let (start, end) = (u64::from(missed.offset), end(missed));
        let window = match self.packs.get(&missed.pack) {
            Some(r) if start >= r.end && start - r.end <= GAP => (r.window * 2).clamp(FIRST, MAX),
            _ => 0,
        };
        self.packs.insert(missed.pack, Reading { end, window });
        window
    }

    /// These chunks are fetched behind the miss.
    pub(super) fn fetching(&mut self, chunks: &[ChunkRef]) {
        let Some(last) = chunks.last() else { return };
        if let Some(reading) = self.packs.get_mut(&last.at.pack) {
            reading.end = end(&last.at);
        }
        if self.pending.len() + chunks.len() > PENDING {
            self.pending.clear();
        }
        for c in chunks {
            self.counts.fetched_bytes += u64::from(c.at.stored_len);
            self.pending.insert(c.id, c.at.stored_len);
        }
    }

    /// A chunk was read from memory.
    pub(super) fn read(&mut self, id: &ChunkId) {
        if !self.pending.is_empty()
            && let Some(bytes) = self.pending.remove(id)
        {
            self.counts.used_bytes += u64::from(bytes);
        }
    }

    pub(super) fn counts(&self) -> ReadAhead {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use hiloop_manifest::Codec;
    use hiloop_manifest::schema::ChunkDomain;
    use hiloop_types::{Owner, Session, WriterEpoch};

    use super::*;

    fn chunk(pack: u32, n: u32, len: u32) -> ChunkRef {
        let pack = PackId { owner: Owner(1), epoch: WriterEpoch(0), session: Session(1), sequence: 0, attempt: pack };
        let at = FrameLoc { pack, offset: n * len, stored_len: len, plain_len: len, codec: Codec::Raw };
        let mut id = [0; 32];
        id[..4].copy_from_slice(&n.to_le_bytes());
        ChunkRef { domain: ChunkDomain::Own, id: ChunkId(id), at }
    }

    /// Reads chunks of 1000 bytes in this order and answers the bytes fetched: (wanted, ahead).
    fn read(n: &mut Neighbours, order: impl Iterator<Item = u32>) -> (u64, u64) {
        let mut memory = std::collections::HashSet::new();
        let mut wanted = 0;
        for i in order {
            let c = chunk(0, i, 1000);
            if memory.contains(&i) {
                n.read(&c.id);
                continue;
            }
            wanted += 1000;
            let window = n.window(&c.at);
            let ahead: Vec<_> = (i + 1..).take((window / 1000) as usize).map(|i| chunk(0, i, 1000)).collect();
            n.fetching(&ahead);
            memory.extend(i..=i + ahead.len() as u32);
        }
        (wanted, n.counts().fetched_bytes)
    }

    #[test]
    fn reading_in_order_fetches_little_by_little_and_wastes_at_most_the_last_window() {
        let mut n = Neighbours::default();
        let (wanted, ahead) = read(&mut n, 0..20_000);
        assert!(wanted <= 20_000, "{wanted} bytes in requests of their own");
        let wasted = ahead - n.counts().used_bytes;
        assert!(wasted <= MAX, "{wasted}");
        assert_eq!(wanted + n.counts().used_bytes, 20_000_000);
    }

    #[test]
    fn reading_in_no_order_fetches_nothing_ahead() {
        let mut n = Neighbours::default();
        assert_eq!(read(&mut n, (0..1000).map(|i| i * 7919 % 100_003)), (1_000_000, 0));
        let mut n = Neighbours::default();
        assert_eq!(read(&mut n, (0..1000).rev()), (1_000_000, 0), "nor backwards");
    }

    #[test]
    fn packs_are_followed_apart_and_what_is_remembered_is_bounded() {
        let mut n = Neighbours::default();
        assert_eq!(n.window(&chunk(0, 0, 1000).at), 0);
        assert_eq!(n.window(&chunk(1, 0, 1000).at), 0);
        assert_eq!(n.window(&chunk(0, 1, 1000).at), FIRST);
        assert_eq!(n.window(&chunk(1, 1, 1000).at), FIRST);
        assert_eq!(n.window(&chunk(0, 2, 1000).at), 2 * FIRST);
        for pack in 0..1000 {
            n.window(&chunk(pack, 0, 1000).at);
            n.fetching(&(0..300).map(|i| chunk(pack, pack * 300 + i, 10)).collect::<Vec<_>>());
        }
        assert!(n.packs.len() <= PACKS && n.pending.len() <= PENDING);
    }
}
