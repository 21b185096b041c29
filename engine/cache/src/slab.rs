//! A slab file with the account of its space.

use std::io;

use parking_lot::Mutex;

use crate::disk::{Disk, SlabFile};
use crate::frame::{CacheKey, Frame};
use crate::options::BLOCK;
use crate::record::{self, Fault, HEADER, Place};

/// One slab: appended to until full, then only punched.
pub(crate) struct Slab {
    pub(crate) id: u32,
    capacity: u32,
    file: Box<dyn SlabFile>,
    space: Mutex<Space>,
}

/// A run of bytes that can be punched: (offset, length), whole blocks.
pub(crate) type Run = (u64, u64);

struct Space {
    /// Where the next record goes.
    end: u32,
    /// No record will be added any more.
    sealed: bool,
    /// Records that touch each block. A record is longer than 59 bytes, so that at most 70 meet in one block.
    touching: Vec<u8>,
    records: u32,
    bytes: u64,
}

/// What a slab holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    pub(crate) bytes: u64,
    pub(crate) records: u32,
    pub(crate) sealed: bool,
}

impl Slab {
    /// Makes a new file with its header.
    pub(crate) fn create(disk: &dyn Disk, id: u32, capacity: u32) -> io::Result<Self> {
        let file = disk.create(id)?;
        if let Err(err) = file.write_all_at(&record::slab_header(id), 0) {
            // A disk that stays full must not gather a file per try.
            let _ = disk.remove(id);
            return Err(err);
        }
        Ok(Self::new(id, capacity, file, BLOCK as u32))
    }

    /// Opens a file of an earlier run. Nothing is live until it is [adopted](Self::adopt); nothing is added behind its end.
    pub(crate) fn open(disk: &dyn Disk, id: u32, capacity: u32) -> io::Result<Self> {
        let file = disk.open(id)?;
        let mut header = vec![0; BLOCK as usize];
        file.read_exact_at(&mut header, 0)?;
        if header != record::slab_header(id) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a slab of this version"));
        }
        let end = file.length()?.next_multiple_of(BLOCK).min(u64::from(u32::MAX)) as u32;
        Ok(Self::new(id, capacity, file, end))
    }

    fn new(id: u32, capacity: u32, file: Box<dyn SlabFile>, end: u32) -> Self {
        let space = Space { end, sealed: false, touching: Vec::new(), records: 0, bytes: 0 };
        Self { id, capacity, file, space: Mutex::new(space) }
    }

    /// Takes the next `len` bytes, or seals the slab when they do not fit.
    pub(crate) fn reserve(&self, len: u32) -> Option<Place> {
        let mut space = self.space.lock();
        let end = space.end.checked_add(len).filter(|end| !space.sealed && *end <= self.capacity);
        let Some(end) = end else {
            space.sealed = true;
            return None;
        };
        let at = std::mem::replace(&mut space.end, end);
        space.occupy(at, len);
        Some(Place { slab: self.id, at })
    }

    /// Counts a record of an earlier run as live; the caller sees to it that records do not overlap. False if it cannot be one.
    pub(crate) fn adopt(&self, at: u32, len: u32) -> bool {
        let mut space = self.space.lock();
        let fits = at >= BLOCK as u32 && len as usize >= HEADER && at.checked_add(len).is_some_and(|end| end <= space.end);
        if fits {
            space.occupy(at, len);
        }
        fits
    }

    /// Gives a record's bytes up; answers the blocks that nothing touches any more.
    pub(crate) fn release(&self, at: u32, len: u32) -> Vec<Run> {
        let mut space = self.space.lock();
        space.records -= 1;
        space.bytes -= u64::from(len);
        // The block that the next record begins in is not given back: punching it would race with writing that record.
        let open_block = if space.sealed { usize::MAX } else { space.end as usize / BLOCK as usize };
        let mut dead = Vec::new();
        for block in blocks(at, len) {
            space.touching[block] -= 1;
            if space.touching[block] == 0 && block < open_block {
                extend(&mut dead, block);
            }
        }
        dead
    }

    /// Every block behind the header that nothing touches: what a crash left behind.
    pub(crate) fn untouched(&self) -> Vec<Run> {
        let space = self.space.lock();
        let mut dead = Vec::new();
        for block in 1..(u64::from(space.end) / BLOCK) as usize {
            if space.touching.get(block).is_none_or(|n| *n == 0) {
                extend(&mut dead, block);
            }
        }
        dead
    }

    pub(crate) fn seal(&self) {
        self.space.lock().sealed = true;
    }

    pub(crate) fn fill(&self) -> Fill {
        let space = self.space.lock();
        Fill { bytes: space.bytes, records: space.records, sealed: space.sealed }
    }

    pub(crate) fn punch(&self, run: Run) -> io::Result<()> {
        self.file.punch(run.0, run.1)
    }

    pub(crate) fn is_linked(&self) -> bool {
        self.file.is_linked().unwrap_or(true)
    }

    pub(crate) fn write(&self, place: Place, key: &CacheKey, frame: &Frame) -> io::Result<()> {
        let head = record::head(place, key, frame);
        self.file.write_all_at(&head, u64::from(place.at))?;
        self.file.write_all_at(&frame.stored, u64::from(place.at) + head.len() as u64)
    }

    pub(crate) fn read(&self, place: Place, len: u32, key: &CacheKey) -> Result<Frame, Fault> {
        let mut bytes = vec![0; len as usize];
        match self.file.read_exact_at(&mut bytes, u64::from(place.at)) {
            Ok(()) => record::decode(place, key, bytes),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(Fault::Vanished),
            Err(_) => Err(Fault::Corrupt),
        }
    }
}

impl Space {
    fn occupy(&mut self, at: u32, len: u32) {
        let touched = blocks(at, len);
        if self.touching.len() <= *touched.end() {
            self.touching.resize(*touched.end() + 1, 0);
        }
        for block in touched {
            self.touching[block] += 1;
        }
        self.records += 1;
        self.bytes += u64::from(len);
    }
}

fn blocks(at: u32, len: u32) -> std::ops::RangeInclusive<usize> {
    let (at, len) = (u64::from(at), u64::from(len));
    (at / BLOCK) as usize..=((at + len - 1) / BLOCK) as usize
}

fn extend(runs: &mut Vec<Run>, block: usize) {
    let at = block as u64 * BLOCK;
    match runs.last_mut() {
        Some((start, len)) if *start + *len == at => *len += BLOCK,
        _ => runs.push((at, BLOCK)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Directory;

    fn slab(capacity: u32) -> (tempfile::TempDir, Slab) {
        let dir = tempfile::tempdir().unwrap();
        let disk = Directory::open(dir.path()).unwrap();
        let slab = Slab::create(&disk, 1, capacity).unwrap();
        (dir, slab)
    }

    #[test]
    fn a_block_is_dead_when_its_last_record_goes() {
        let (_dir, slab) = slab(64 << 10);
        let places: Vec<_> = [3000, 3000, 9000, 4096].iter().map(|len| (slab.reserve(*len).unwrap().at, *len)).collect();
        // Records: 4096..7096, 7096..10096, 10096..19096, 19096..23192; the next begins in block 5.
        assert_eq!(slab.release(places[0].0, places[0].1), []);
        assert_eq!(slab.release(places[2].0, places[2].1), [(12288, 4096)]);
        assert_eq!(slab.release(places[1].0, places[1].1), [(4096, 8192)]);
        assert_eq!(slab.release(places[3].0, places[3].1), [(16384, 4096)], "not the block that the next record begins in");
        assert_eq!(slab.fill().records, 0);
        let next = slab.reserve(100).unwrap();
        assert_eq!(next.at, 23192);
        slab.seal();
        assert_eq!(slab.release(next.at, 100), [(20480, 4096)]);
        assert_eq!(slab.reserve(100), None);
    }

    #[test]
    fn a_slab_that_is_full_seals_itself() {
        let (_dir, slab) = slab(64 << 10);
        assert!(slab.reserve(60 << 10).is_some());
        assert!(slab.reserve(100).is_none());
        assert!(slab.fill().sealed);
    }

    #[test]
    fn tiny_records_fit_the_counters() {
        let (_dir, slab) = slab(64 << 10);
        let len = record::length(0).unwrap();
        let mut places = Vec::new();
        while let Some(p) = slab.reserve(len) {
            places.push(p);
        }
        let dead: u64 = places.iter().flat_map(|p| slab.release(p.at, len)).map(|r| r.1).sum();
        assert_eq!(dead, (64 << 10) - 4096);
    }

    #[test]
    fn reopening_adopts_what_fits() {
        let (dir, first) = slab(64 << 10);
        let key = CacheKey([5; 32]);
        let frame = Frame { codec: 0, plain_len: 1, stored: vec![1; 9000].into() };
        let len = record::length(9000).unwrap();
        let place = first.reserve(len).unwrap();
        first.write(place, &key, &frame).unwrap();
        let disk = Directory::open(dir.path()).unwrap();
        let again = Slab::open(&disk, 1, 64 << 10).unwrap();
        assert!(!again.adopt(0, 100) && !again.adopt(4096, 60_000) && !again.adopt(4096, 10) && !again.adopt(u32::MAX, u32::MAX));
        assert_eq!(again.untouched(), [(4096, 12288)]);
        assert!(again.adopt(place.at, len));
        assert_eq!(again.untouched(), []);
        assert_eq!(again.read(place, len, &key), Ok(frame));
        assert_eq!(again.reserve(100).unwrap().at, 16384, "the next record begins behind all that may have been written");
        std::fs::write(dir.path().join("slab-00000002"), [0; 5000]).unwrap();
        assert!(Slab::open(&disk, 2, 64 << 10).is_err());
    }
}
