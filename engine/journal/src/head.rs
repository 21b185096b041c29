//! The growing end of the stream: numbers records, places them, opens the next segment. Lives under one lock.

use std::collections::VecDeque;
use std::sync::Arc;

use hiloop_types::{Error, Result, ResultExt, Seqno};

use crate::disk::DiskFile;
use crate::format::{
    DATA_START, RECORD_HEADER, RecordClass, SegmentHeader, SlabId, StagedRef, encode_control, finish_record, segment_seed,
};
use crate::options::Class;
use crate::segments::{Pool, SegmentFile, segment_path};

/// A segment that counts.
pub(crate) struct LiveSegment {
    pub(crate) file: SegmentFile,
    pub(crate) generation: u64,
    /// Number that its first record has or will have.
    pub(crate) first: Seqno,
    /// Last record in it (the one before its first, if it has none).
    pub(crate) last: Seqno,
    /// Slabs that its records name, each with the last record that does.
    pub(crate) slabs: Vec<(SlabId, Seqno)>,
}

impl LiveSegment {
    pub(crate) fn note(&mut self, seqno: Seqno, staged: &[StagedRef]) {
        self.last = seqno;
        for r in staged {
            // Newest first: nearly always the slab that is being filled.
            match self.slabs.iter_mut().rev().find(|(id, _)| *id == r.slab) {
                Some((_, last)) => *last = seqno,
                None => self.slabs.push((r.slab, seqno)),
            }
        }
    }
}

pub(crate) struct Head {
    pub(crate) incarnation: u64,
    pub(crate) current: LiveSegment,
    seed: u32,
    offset: u64,
    pub(crate) next: Seqno,
    dirty: bool,
    dirty_closed: Vec<Arc<dyn DiskFile>>,
    /// Older segments that still count, oldest first.
    pub(crate) closed: VecDeque<LiveSegment>,
    /// The current segment came out of the reserve: ordinary records wait until the reserve is whole again.
    reserve_only: bool,
}

impl Head {
    /// Starts `generation` of `incarnation` in a fresh segment; the first record will be `next`.
    pub(crate) fn start(pool: &Pool, incarnation: u64, generation: u64, next: Seqno, flushed: Seqno) -> Result<Self> {
        let file = pool.take(Class::Reserve)?;
        let mut head = Self {
            incarnation,
            current: LiveSegment { file, generation, first: next, last: Seqno(next.0.saturating_sub(1)), slabs: Vec::new() },
            seed: segment_seed(incarnation, generation),
            offset: DATA_START,
            next,
            dirty: true,
            dirty_closed: Vec::new(),
            closed: VecDeque::new(),
            reserve_only: false,
        };
        let header = SegmentHeader { incarnation, generation, first: next, flushed }.encode();
        head.current.file.file.write_at(&header, 0).at(segment_path(&pool.dir, head.current.file.id).display())?;
        head.reserve_only = !pool.reserve_is_full();
        Ok(head)
    }
    /// A head for a journal that only reads: nothing is written.
    pub(crate) fn closed_for_writing(closed: VecDeque<LiveSegment>, current: LiveSegment, next: Seqno) -> Self {
        let generation = current.generation;
        Self {
            incarnation: 0,
            current,
            seed: segment_seed(0, generation),
            offset: u64::MAX,
            next,
            dirty: false,
            dirty_closed: Vec::new(),
            closed,
            reserve_only: true,
        }
    }
    /// Last number given.
    pub(crate) fn accepted(&self) -> Seqno {
        Seqno(self.next.0 - 1)
    }
    /// Writes an encoded record under the next number. On an error nothing changed but bytes past the end.
    pub(crate) fn append(&mut self, record: &mut [u8], class: Class, staged: &[StagedRef], pool: &Pool, flushed: Seqno) -> Result<Seqno> {
        if self.reserve_only && class == Class::Data {
            self.leave_reserve(pool)?;
        }
        if self.offset + record.len() as u64 > self.current.file.size {
            if DATA_START + record.len() as u64 > self.current.file.size {
                return Err(Error::invalid(format!("record of {} bytes does not fit a segment", record.len())).hint("stage the data first"));
            }
            self.rotate(class, pool, flushed)?;
        }
        let seqno = self.next;
        finish_record(record, self.seed, self.offset, seqno);
        self.write(record, pool)?;
        self.dirty = true;
        self.next = seqno.next();
        self.current.note(seqno, staged);
        Ok(seqno)
    }
    fn write(&mut self, record: &[u8], pool: &Pool) -> Result<()> {
        let file = &self.current.file;
        file.file.write_at(record, self.offset).at(segment_path(&pool.dir, file.id).display())?;
        self.offset += record.len() as u64;
        Ok(())
    }
    /// Notes in the stream that everything up to `flushed` is durable; skipped when the segment is full (the next header says it).
    pub(crate) fn mark_flushed(&mut self, flushed: Seqno, pool: &Pool) -> Result<()> {
        if self.offset + RECORD_HEADER as u64 > self.current.file.size {
            return Ok(());
        }
        let record = encode_control(RecordClass::Flushed, self.seed, self.offset, flushed);
        self.write(&record, pool)
    }
    /// Lets numbering go on at `next` (recovery).
    pub(crate) fn skip_to(&mut self, next: Seqno, pool: &Pool, flushed: Seqno) -> Result<()> {
        if self.offset + RECORD_HEADER as u64 > self.current.file.size {
            self.rotate(Class::Reserve, pool, flushed)?;
        }
        let record = encode_control(RecordClass::Skip, self.seed, self.offset, next);
        self.write(&record, pool)?;
        self.next = next;
        self.current.last = Seqno(next.0 - 1);
        self.dirty = true;
        Ok(())
    }
    fn leave_reserve(&mut self, pool: &Pool) -> Result<()> {
        while !pool.reserve_is_full() {
            pool.fill_one()?;
        }
        self.reserve_only = false;
        Ok(())
    }
    fn rotate(&mut self, class: Class, pool: &Pool, flushed: Seqno) -> Result<()> {
        let file = pool.take(class)?;
        let generation = self.current.generation + 1;
        let header = SegmentHeader { incarnation: self.incarnation, generation, first: self.next, flushed }.encode();
        if let Err(e) = file.file.write_at(&header, 0) {
            let place = segment_path(&pool.dir, file.id);
            pool.give_back(file)?;
            return Err(Error::io(place.display(), &e));
        }
        let new = LiveSegment { file, generation, first: self.next, last: self.accepted(), slabs: Vec::new() };
        let old = std::mem::replace(&mut self.current, new);
        if self.dirty {
            self.dirty_closed.push(old.file.file.clone());
        }
        self.closed.push_back(old);
        self.seed = segment_seed(self.incarnation, generation);
        self.offset = DATA_START;
        self.dirty = true;
        self.reserve_only = !pool.reserve_is_full();
        Ok(())
    }
    /// Files with unflushed records; they count as clean from here on, so a failed flush of them must end the journal.
    pub(crate) fn take_dirty(&mut self) -> Vec<Arc<dyn DiskFile>> {
        let mut files = std::mem::take(&mut self.dirty_closed);
        if std::mem::take(&mut self.dirty) {
            files.push(self.current.file.file.clone());
        }
        files
    }
    /// The oldest segment that must stay when everything up to `upto` is released. One whose header may not be on the disk yet cannot
    /// take that place: after a power cut the anchor would name a segment that is not there.
    pub(crate) fn oldest_kept(&self, upto: Seqno, flushed: Seqno) -> u64 {
        let pairs = self.segments().zip(self.segments().skip(1));
        let passed = pairs.take_while(|(old, new)| old.last <= upto && new.first <= flushed);
        passed.last().map_or_else(|| self.segments().next().map_or(self.current.generation, |s| s.generation), |(_, new)| new.generation)
    }
    /// All segments that count, oldest first.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &LiveSegment> {
        self.closed.iter().chain([&self.current])
    }
}
