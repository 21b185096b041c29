//! Reading a source's contents: cut on the reading thread, named and compressed on a few workers, shipped in order by one.
//!
//! Memory is bounded: batches of about [`BATCH`] bytes wait in two queues of a few places each, and the shipper holds what
//! [`Shipper`] holds; all else is bookkeeping per chunk.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::Bytes;
use hiloop_manifest::schema::{ChunkDomain, ChunkRef};
use hiloop_manifest::{Chunker, Codec, CutPolicy, DomainKey, EncodedChunk, FrameLoc, LEVEL_COLD, chunk_id, encode_chunk};
use hiloop_source::{Content, ContentSink, DataRange, Shape, SourceLimits, SourceSpec, SourceTree};
use hiloop_types::limits::{CHUNK_MAX, MIB};
use hiloop_types::{ChunkId, Error, Owner, PackId, Result, Session, WriterEpoch};
use parking_lot::Mutex;

use super::reuse::Reusable;
use super::{BaseProgress, ProgressFn};
use crate::ship::Shipper;

/// Plain bytes that go to a worker at once.
const BATCH: usize = MIB as usize;
/// Batches in each of the two queues.
const QUEUE: usize = 4;
/// Threads that name and compress, at most.
const WORKERS_MAX: usize = 8;
/// Marks a run of zeros in [`Run::chunk`].
const ZEROS: u32 = u32::MAX;

/// A run of a file's bytes.
#[derive(Clone, Copy, Debug)]
struct Run {
    offset: u64,
    len: u32,
    chunk: u32,
}

/// The contents that were read: runs of files, and the chunks that they name.
#[derive(Default)]
pub(super) struct Contents {
    files: Vec<Box<[Run]>>,
    /// By number of submission.
    order: Vec<u32>,
    chunks: Vec<ChunkRef>,
}

/// Bytes of one file from one place; without a chunk they are zeros.
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) chunk: Option<ChunkRef>,
}

impl Contents {
    /// The extents of a file by the handle in its [`Content`], ascending.
    pub(super) fn extents(&self, handle: u64) -> impl Iterator<Item = Extent> + '_ {
        let runs = usize::try_from(handle).ok().and_then(|h| self.files.get(h)).map_or(&[][..], |r| r);
        runs.iter().map(|r| Extent { offset: r.offset, len: r.len, chunk: self.chunk(r.chunk) })
    }

    fn chunk(&self, number: u32) -> Option<ChunkRef> {
        (number != ZEROS).then(|| self.chunks[self.order[number as usize] as usize])
    }
}

/// What became of the chunks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Chunks with an identity of their own.
    pub(super) distinct: u64,
    /// Those of them that another base had.
    pub(super) reused: u64,
}

/// A source to be read.
pub(super) struct Reading {
    pub(super) source: SourceSpec,
    pub(super) limits: SourceLimits,
    pub(super) key: DomainKey,
    pub(super) domain: ChunkDomain,
    pub(super) progress: ProgressFn,
    /// Ends the reading soon.
    pub(super) cancelled: Arc<AtomicBool>,
}

struct Batch {
    first: u32,
    plain: Vec<Bytes>,
}

enum Made {
    /// To be shipped.
    New(EncodedChunk),
    /// In another base, or not to be shipped at all.
    Named(ChunkId),
}

struct Done {
    first: u32,
    made: Result<Vec<Made>>,
}

impl Reading {
    /// Key of the hash of entry names: the same for all bases of a domain, so that equal trees are equal records.
    pub(super) fn name_key(&self) -> [u8; 32] {
        blake3::derive_key("hiloop 2026 names of a base", &self.key.0)
    }

    /// Reads everything. Without a shipper chunks are only named, and their places mean nothing.
    ///
    /// Blocks: not for a thread of the runtime.
    pub(super) fn read(
        self,
        shipper: Option<Shipper>,
        reusable: Option<Reusable>,
    ) -> Result<(SourceTree, Contents, Counts, Option<Shipper>)> {
        let workers = std::thread::available_parallelism().map_or(2, usize::from).min(WORKERS_MAX);
        let (jobs, waiting) = sync_channel::<Batch>(QUEUE);
        let (results, finished) = sync_channel::<Done>(QUEUE);
        let waiting = Arc::new(Mutex::new(Some(waiting)));
        let named_only = shipper.is_none();
        let reusable = reusable.unwrap_or_default();
        let mut collector = Collector {
            domain: self.domain,
            shipper,
            reusable: &reusable,
            known: HashMap::new(),
            order: Vec::new(),
            chunks: Vec::new(),
            reused: 0,
        };
        std::thread::scope(|threads| {
            for _ in 0..workers {
                let (waiting, results, key, reusable) = (waiting.clone(), results.clone(), &self.key, &reusable);
                threads.spawn(move || work(&waiting, &results, key, |id| named_only || reusable.contains_key(id)));
            }
            drop(results);
            let collecting = threads.spawn(move || {
                let ended = collector.collect(&finished);
                // After an error both queues are closed, so that workers and reader stop.
                drop(finished);
                waiting.lock().take();
                ended.map(|()| collector)
            });
            let mut cutter = Cutter {
                jobs,
                batch: Vec::new(),
                batched: 0,
                submitted: 0,
                files: Vec::new(),
                cancelled: &self.cancelled,
                buffer: Vec::new(),
            };
            let mut told = |p: hiloop_source::Progress| (self.progress)(BaseProgress::Reading { entries: p.entries, bytes: p.bytes });
            let read = hiloop_source::read(&self.source, &mut cutter, &self.limits, &mut told);
            let files = read.and_then(|tree| cutter.finish().map(|files| (tree, files)));
            let collected = collecting.join().map_err(|_| Error::internal("the shipping thread died"))?;
            // Where shipping failed, the reader only says that it was stopped.
            let collected = collected?;
            let (tree, files) = files?;
            let counts = Counts { distinct: collected.chunks.len() as u64, reused: collected.reused };
            Ok((tree, Contents { files, order: collected.order, chunks: collected.chunks }, counts, collected.shipper))
        })
    }
}

/// One worker: takes batches until there are no more.
fn work(waiting: &Mutex<Option<Receiver<Batch>>>, results: &SyncSender<Done>, key: &DomainKey, known: impl Fn(&ChunkId) -> bool) {
    loop {
        // Held while waiting: whoever waits for a batch waits for the same queue.
        let batch = match &*waiting.lock() {
            Some(queue) => queue.recv(),
            None => return,
        };
        let Ok(Batch { first, plain }) = batch else { return };
        let made = plain.iter().map(|p| {
            let id = chunk_id(key, p);
            if known(&id) { Ok(Made::Named(id)) } else { encode_chunk(key, p, LEVEL_COLD).map(Made::New) }
        });
        if results.send(Done { first, made: made.collect() }).is_err() {
            return;
        }
    }
}

/// Brings results into order and ships them.
struct Collector<'a> {
    domain: ChunkDomain,
    shipper: Option<Shipper>,
    reusable: &'a Reusable,
    known: HashMap<ChunkId, u32>,
    order: Vec<u32>,
    chunks: Vec<ChunkRef>,
    reused: u64,
}

impl Collector<'_> {
    fn collect(&mut self, finished: &Receiver<Done>) -> Result<()> {
        let mut early = BTreeMap::new();
        while let Ok(done) = finished.recv() {
            early.insert(done.first, done.made);
            while let Some(made) = early.remove(&(self.order.len() as u32)) {
                for chunk in made? {
                    self.place(chunk)?;
                }
            }
        }
        Ok(())
    }

    fn place(&mut self, made: Made) -> Result<()> {
        let id = match &made {
            Made::New(c) => c.id,
            Made::Named(id) => *id,
        };
        if let Some(slot) = self.known.get(&id) {
            self.order.push(*slot);
            return Ok(());
        }
        let at = match (made, &mut self.shipper) {
            (Made::New(c), Some(shipper)) => shipper.chunk(&c)?,
            (Made::New(c), None) => nowhere(c.codec, c.plain_len),
            (Made::Named(id), _) => match self.reusable.get(&id) {
                Some(at) => {
                    self.reused += 1;
                    *at
                }
                None => nowhere(Codec::Raw, 0),
            },
        };
        let slot = self.chunks.len() as u32;
        self.chunks.push(ChunkRef { domain: self.domain, id, at });
        self.known.insert(id, slot);
        self.order.push(slot);
        Ok(())
    }
}

/// The place of a chunk that is only named.
fn nowhere(codec: Codec, plain_len: u32) -> FrameLoc {
    let pack = PackId { owner: Owner(0), epoch: WriterEpoch(0), session: Session(0), sequence: 0, attempt: 0 };
    FrameLoc { pack, offset: 0, stored_len: 0, plain_len, codec }
}

/// Cuts contents as they arrive.
struct Cutter<'a> {
    jobs: SyncSender<Batch>,
    batch: Vec<Bytes>,
    batched: usize,
    submitted: u32,
    files: Vec<Box<[Run]>>,
    cancelled: &'a AtomicBool,
    buffer: Vec<u8>,
}

impl Cutter<'_> {
    fn finish(mut self) -> Result<Vec<Box<[Run]>>> {
        self.flush()?;
        Ok(self.files)
    }

    fn flush(&mut self) -> Result<()> {
        let plain = std::mem::take(&mut self.batch);
        self.batched = 0;
        if plain.is_empty() {
            return Ok(());
        }
        let first = self.submitted - plain.len() as u32;
        self.jobs.send(Batch { first, plain }).map_err(|_| Error::unavailable("uploading stopped"))
    }

    fn run(&mut self, offset: u64, plain: &[u8]) -> Result<Run> {
        let len = plain.len() as u32;
        if plain.iter().all(|b| *b == 0) {
            return Ok(Run { offset, len, chunk: ZEROS });
        }
        let chunk = self.submitted;
        self.submitted =
            chunk.checked_add(1).filter(|n| *n < ZEROS).ok_or_else(|| Error::exhausted("the source has more than four billion chunks"))?;
        self.batch.push(Bytes::copy_from_slice(plain));
        self.batched += plain.len();
        if self.batched >= BATCH {
            self.flush()?;
        }
        Ok(Run { offset, len, chunk })
    }

    /// Cuts one run of data that starts at `range.offset` of the file; answers the bytes read, which are fewer if the reader ends.
    fn range(&mut self, range: DataRange, policy: CutPolicy, reader: &mut dyn Read, runs: &mut Vec<Run>) -> Result<u64> {
        let chunker = Chunker::new(policy);
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(2 * CHUNK_MAX as usize, 0);
        // Bytes `start..end` of the buffer are read and not cut; `cut` bytes of the range are cut.
        let (mut start, mut end, mut cut, mut ended) = (0, 0, 0u64, false);
        loop {
            if self.cancelled.load(Ordering::Relaxed) {
                return Err(Error::closed("the publish was given up"));
            }
            while !ended && end - start < chunker.longest() {
                if buffer.len() - start < chunker.longest() {
                    buffer.copy_within(start..end, 0);
                    (start, end) = (0, end - start);
                }
                let left = range.length - cut - (end - start) as u64;
                let room = (buffer.len() - end).min(usize::try_from(left).unwrap_or(usize::MAX));
                match reader.read(&mut buffer[end..end + room]) {
                    Ok(0) => ended = true,
                    Ok(n) => end += n,
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(Error::io("read", &e)),
                }
            }
            let Some(len) = chunker.next_cut(&buffer[start..end], ended) else { break };
            runs.push(self.run(range.offset + cut, &buffer[start..start + len])?);
            start += len;
            cut += len as u64;
        }
        self.buffer = buffer;
        Ok(cut)
    }
}

impl ContentSink for Cutter<'_> {
    fn content(&mut self, _path: &Path, shape: Shape<'_>, reader: &mut dyn Read) -> Result<Content> {
        let whole = [DataRange { offset: 0, length: shape.size }];
        let policy = CutPolicy::for_len(shape.size);
        let (mut runs, mut size) = (Vec::new(), 0);
        for range in shape.data.unwrap_or(&whole) {
            let got = self.range(*range, policy, reader, &mut runs)?;
            size += got;
            if got < range.length {
                break;
            }
        }
        let handle = self.files.len() as u64;
        self.files.push(runs.into_boxed_slice());
        Ok(Content { handle, size })
    }
}
