//! Reading the stream of an earlier run: the longest whole prefix, and whether anything whole stands behind its end.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hiloop_types::{Result, ResultExt, Seqno};

use crate::format::{ALIGN, DATA_START, Link, RecordClass, RecordView, SegmentHeader, Slot, parse_record, segment_seed};
use crate::segments::{FoundSegment, SegmentFile, segment_path};

pub(crate) struct ChainSegment {
    pub(crate) file: SegmentFile,
    pub(crate) header: SegmentHeader,
}

/// The segments that count, by generation, and the others.
pub(crate) struct Chain {
    dir: PathBuf,
    links: Vec<Link>,
    oldest: u64,
    released: Seqno,
    pub(crate) segments: BTreeMap<u64, ChainSegment>,
    /// Files that no link claims.
    pub(crate) strays: Vec<SegmentFile>,
    /// Highest generation in any whole header.
    pub(crate) highest_generation: u64,
    /// Strays without a whole header: one of them may be the lost next segment.
    headless: Vec<SegmentFile>,
}

/// Where a walk ended.
pub(crate) struct Walk {
    pub(crate) generation: u64,
    pub(crate) offset: u64,
    /// First number that is missing.
    pub(crate) expected: Seqno,
    /// Highest number that the stream, as far as it was read, calls flushed.
    pub(crate) flushed: Seqno,
    /// It ended before the last link began, or that link's first segment is gone: flushed records are missing.
    pub(crate) broken: bool,
}

/// What stands behind the end of a walk.
#[derive(Default)]
pub(crate) struct Behind {
    pub(crate) whole: u64,
    pub(crate) highest: Seqno,
    pub(crate) flushed: Seqno,
}

fn read_all(dir: &std::path::Path, segment: &SegmentFile) -> Result<Vec<u8>> {
    let mut bytes = vec![0; segment.size as usize];
    let n = segment.file.read_at(&mut bytes, 0).at(segment_path(dir, segment.id).display())?;
    bytes.truncate(n);
    Ok(bytes)
}

/// Whether a segment starts with a whole record (used when there is no anchor to say what counts).
pub(crate) fn holds_records(dir: &std::path::Path, found: &FoundSegment) -> Result<bool> {
    let Some(h) = SegmentHeader::decode(&found.header)? else { return Ok(false) };
    let bytes = read_all(dir, &found.segment)?;
    Ok(parse_record(&bytes, segment_seed(h.incarnation, h.generation), DATA_START).is_some())
}

impl Chain {
    pub(crate) fn new(dir: PathBuf, found: Vec<FoundSegment>, slot: &Slot) -> Result<Self> {
        let mut chain = Self {
            dir,
            links: slot.links.clone(),
            oldest: slot.oldest_generation,
            released: slot.released,
            segments: BTreeMap::new(),
            strays: Vec::new(),
            highest_generation: 0,
            headless: Vec::new(),
        };
        for f in found {
            let header = SegmentHeader::decode(&f.header).at(segment_path(&chain.dir, f.segment.id).display())?;
            let Some(header) = header else {
                chain.headless.push(f.segment.clone());
                chain.strays.push(f.segment);
                continue;
            };
            chain.highest_generation = chain.highest_generation.max(header.generation);
            let claimed = chain.links.iter().any(|l| {
                l.incarnation == header.incarnation
                    && l.first_generation <= header.generation
                    && l.end_generation.is_none_or(|e| header.generation < e)
            });
            if claimed && header.generation >= chain.oldest && !chain.segments.contains_key(&header.generation) {
                chain.segments.insert(header.generation, ChainSegment { file: f.segment, header });
            } else {
                chain.strays.push(f.segment);
            }
        }
        Ok(chain)
    }
    pub(crate) fn path(&self, generation: u64) -> PathBuf {
        self.segments.get(&generation).map_or_else(|| self.dir.clone(), |s| segment_path(&self.dir, s.file.id))
    }

    /// Calls `each` for the whole records in order, with the generation they stand in, until it returns `false` or the prefix ends.
    pub(crate) fn walk(&self, each: &mut dyn FnMut(&RecordView<'_>, u64) -> Result<bool>) -> Result<Walk> {
        let last_link = self.links.len() - 1;
        let flushed = self.released.max(Seqno(self.links[last_link].first.0.saturating_sub(1)));
        let mut walk = Walk { generation: self.oldest, offset: DATA_START, expected: self.released.next(), flushed, broken: true };
        let mut started = false;
        for (i, link) in self.links.iter().enumerate() {
            let limit = self.links.get(i + 1).map(|l| l.first);
            let mut generation = link.first_generation.max(self.oldest);
            loop {
                if link.end_generation.is_some_and(|e| generation >= e) {
                    if started && limit.is_some_and(|l| walk.expected < l) {
                        return Ok(walk);
                    }
                    break;
                }
                let Some(segment) = self.segments.get(&generation) else {
                    // The end of the last link, unless it is its first segment, which stood before the anchor named the link.
                    walk.broken = i != last_link || generation == link.first_generation.max(self.oldest);
                    return Ok(walk);
                };
                if started && segment.header.first != walk.expected {
                    walk.broken = i != last_link;
                    return Ok(walk);
                }
                started = true;
                walk.expected = segment.header.first;
                walk.generation = generation;
                if i == last_link {
                    walk.flushed = walk.flushed.max(segment.header.flushed);
                }
                let bytes = read_all(&self.dir, &segment.file)?;
                if !scan(&bytes, &segment.header, limit, &mut walk, each)? {
                    walk.broken = false;
                    return Ok(walk);
                }
                generation += 1;
            }
        }
        // Only the last link is open, and its loop returns.
        Ok(walk)
    }

    /// Looks for whole records of the same incarnations after the end of a walk.
    pub(crate) fn look_behind(&self, walk: &Walk) -> Result<Behind> {
        let mut behind = Behind::default();
        for (&generation, segment) in self.segments.range(walk.generation..) {
            let from = if generation == walk.generation { walk.offset } else { DATA_START };
            let seed = segment_seed(segment.header.incarnation, generation);
            resync(&read_all(&self.dir, &segment.file)?, seed, from, &mut behind);
        }
        // The header of the next segment may be what went bad.
        let next = self.segments.last_key_value().map_or(self.oldest, |(g, _)| g + 1);
        let gaps = (walk.generation..=next).filter(|g| !self.segments.contains_key(g));
        let incarnation = self.links[self.links.len() - 1].incarnation;
        for generation in gaps {
            for segment in &self.headless {
                resync(&read_all(&self.dir, segment)?, segment_seed(incarnation, generation), DATA_START, &mut behind);
            }
        }
        Ok(behind)
    }
}

/// Reads one segment; `false` when `each` said stop.
fn scan(
    bytes: &[u8],
    header: &SegmentHeader,
    limit: Option<Seqno>,
    walk: &mut Walk,
    each: &mut dyn FnMut(&RecordView<'_>, u64) -> Result<bool>,
) -> Result<bool> {
    let seed = segment_seed(header.incarnation, header.generation);
    walk.offset = DATA_START;
    while limit.is_none_or(|l| walk.expected < l) {
        let Some(record) = parse_record(bytes, seed, walk.offset) else { break };
        match record.class {
            RecordClass::Record if record.seqno == walk.expected => {
                if !each(&record, header.generation)? {
                    return Ok(false);
                }
                walk.expected = record.seqno.next();
            }
            RecordClass::Skip if record.seqno >= walk.expected => walk.expected = limit.map_or(record.seqno, |l| l.min(record.seqno)),
            RecordClass::Flushed if record.seqno < walk.expected => walk.flushed = walk.flushed.max(record.seqno),
            _ => break,
        }
        walk.offset += record.size;
    }
    Ok(true)
}

/// Collects every whole record from `from` on, wherever it starts.
fn resync(bytes: &[u8], seed: u32, from: u64, behind: &mut Behind) {
    let mut at = from;
    while let Some(start) = bytes.get(at as usize..at as usize + ALIGN) {
        // Most of the rest of a segment is zeros: not worth a checksum.
        let record = if start == [0; ALIGN] { None } else { parse_record(bytes, seed, at) };
        let Some(record) = record else {
            at += ALIGN as u64;
            continue;
        };
        behind.whole += 1;
        let last = match record.class {
            RecordClass::Record => record.seqno,
            RecordClass::Flushed => {
                behind.flushed = behind.flushed.max(record.seqno);
                record.seqno
            }
            RecordClass::Skip => Seqno(record.seqno.0.saturating_sub(1)),
        };
        behind.highest = behind.highest.max(last);
        at += record.size;
    }
}
