//! Byte layouts (described in the crate's documentation): segment header, record, anchor slot, slab header.

use hiloop_types::limits::JOURNAL_RECORD;
use hiloop_types::{Error, Result, Seqno};

/// Stream of a record: one workspace session.
pub type StreamId = u64;

/// Number of a staging slab, never reused while anything names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SlabId(pub u64);

/// A range of staged bytes and their CRC-32C.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StagedRef {
    /// Slab that holds the range.
    pub slab: SlabId,
    /// First byte in the slab file.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// CRC-32C of the whole range.
    pub crc: u32,
}

pub(crate) const VERSION: u32 = 1;
/// Records and ranges start after one sector with the header.
pub(crate) const DATA_START: u64 = 512;
pub(crate) const RECORD_HEADER: usize = 32;
pub(crate) const ALIGN: usize = 8;
pub(crate) const STAGED_LEN: usize = 24;
pub(crate) const HEADER_LEN: usize = 64;
pub(crate) const SLOT_LEN: usize = 4096;
/// Links that an anchor slot can hold; recovery rewrites everything into one link when they run out.
pub(crate) const LINKS_MAX: usize = 100;

pub(crate) const SEGMENT_MAGIC: &[u8; 4] = b"HLJS";
pub(crate) const ANCHOR_MAGIC: &[u8; 4] = b"HLJA";
pub(crate) const SLAB_MAGIC: &[u8; 4] = b"HLJD";

pub(crate) fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}
pub(crate) fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
pub(crate) fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}
pub(crate) fn put32(b: &mut [u8], at: usize, v: u32) {
    b[at..at + 4].copy_from_slice(&v.to_le_bytes());
}
fn put64(b: &mut [u8], at: usize, v: u64) {
    b[at..at + 8].copy_from_slice(&v.to_le_bytes());
}

/// What stands in a record's class byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordClass {
    Record,
    Flushed,
    Skip,
}

impl RecordClass {
    const fn byte(self) -> u8 {
        match self {
            Self::Record => 0,
            Self::Flushed => 1,
            Self::Skip => 2,
        }
    }
    const fn from_byte(b: u8) -> Option<Self> {
        match b {
            0 => Some(Self::Record),
            1 => Some(Self::Flushed),
            2 => Some(Self::Skip),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) incarnation: u64,
    pub(crate) generation: u64,
    /// Number that the first record of the segment carries.
    pub(crate) first: Seqno,
    pub(crate) flushed: Seqno,
}

/// A header with the checks that all three kinds share. `Ok(None)`: not whole (never written, torn or rotten).
fn open_header<'a>(b: &'a [u8], magic: &[u8; 4], len: usize) -> Result<Option<&'a [u8]>> {
    let Some(b) = b.get(..len) else { return Ok(None) };
    if &b[..4] != magic || u32_at(b, len - 4) != crc32c::crc32c(&b[..len - 4]) {
        return Ok(None);
    }
    match u32_at(b, 4) {
        VERSION => Ok(Some(b)),
        v => Err(Error::invalid(format!("journal format version {v} is not known here")).hint("open it with the hiloop that wrote it")),
    }
}

pub(crate) fn seal_header(b: &mut [u8], magic: &[u8; 4]) {
    b[..4].copy_from_slice(magic);
    put32(b, 4, VERSION);
    let at = b.len() - 4;
    let crc = crc32c::crc32c(&b[..at]);
    put32(b, at, crc);
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut b = [0; HEADER_LEN];
        put64(&mut b, 8, self.incarnation);
        put64(&mut b, 16, self.generation);
        put64(&mut b, 24, self.first.0);
        put64(&mut b, 32, self.flushed.0);
        seal_header(&mut b, SEGMENT_MAGIC);
        b
    }
    pub(crate) fn decode(b: &[u8]) -> Result<Option<Self>> {
        Ok(open_header(b, SEGMENT_MAGIC, HEADER_LEN)?.map(|b| Self {
            incarnation: u64_at(b, 8),
            generation: u64_at(b, 16),
            first: Seqno(u64_at(b, 24)),
            flushed: Seqno(u64_at(b, 32)),
        }))
    }
}

pub(crate) fn encode_slab_header(id: SlabId) -> [u8; HEADER_LEN] {
    let mut b = [0; HEADER_LEN];
    put64(&mut b, 8, id.0);
    seal_header(&mut b, SLAB_MAGIC);
    b
}

pub(crate) fn decode_slab_header(b: &[u8]) -> Result<Option<SlabId>> {
    Ok(open_header(b, SLAB_MAGIC, HEADER_LEN)?.map(|b| SlabId(u64_at(b, 8))))
}

/// One incarnation's part of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) incarnation: u64,
    pub(crate) first_generation: u64,
    /// One above the last generation that counts; `None` for the last link, which still grows.
    pub(crate) end_generation: Option<u64>,
    pub(crate) first: Seqno,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) update: u64,
    pub(crate) released: Seqno,
    pub(crate) oldest_generation: u64,
    pub(crate) next_slab: u64,
    pub(crate) links: Vec<Link>,
}

impl Slot {
    pub(crate) fn encode(&self) -> Vec<u8> {
        debug_assert!(self.links.len() <= LINKS_MAX);
        let mut b = vec![0; SLOT_LEN];
        put64(&mut b, 8, self.update);
        put64(&mut b, 16, self.released.0);
        put64(&mut b, 24, self.oldest_generation);
        put64(&mut b, 32, self.next_slab);
        put32(&mut b, 40, self.links.len() as u32);
        for (i, l) in self.links.iter().enumerate() {
            let at = 48 + i * 32;
            put64(&mut b, at, l.incarnation);
            put64(&mut b, at + 8, l.first_generation);
            put64(&mut b, at + 16, l.end_generation.unwrap_or(0));
            put64(&mut b, at + 24, l.first.0);
        }
        seal_header(&mut b, ANCHOR_MAGIC);
        b
    }
    pub(crate) fn decode(b: &[u8]) -> Result<Option<Self>> {
        let Some(b) = open_header(b, ANCHOR_MAGIC, SLOT_LEN)? else { return Ok(None) };
        let count = u32_at(b, 40) as usize;
        if count == 0 || count > LINKS_MAX {
            return Err(Error::corrupt(format!("anchor with {count} links")));
        }
        let links: Vec<Link> = (0..count)
            .map(|i| 48 + i * 32)
            .map(|at| Link {
                incarnation: u64_at(b, at),
                first_generation: u64_at(b, at + 8),
                end_generation: Some(u64_at(b, at + 16)).filter(|&e| e != 0),
                first: Seqno(u64_at(b, at + 24)),
            })
            .collect();
        let ordered = links.windows(2).all(|w| {
            w[0].end_generation.is_some_and(|e| w[0].first_generation < e && e <= w[1].first_generation) && w[0].first <= w[1].first
        });
        if !ordered || links[count - 1].end_generation.is_some() {
            return Err(Error::corrupt("anchor links out of order"));
        }
        Ok(Some(Self {
            update: u64_at(b, 8),
            released: Seqno(u64_at(b, 16)),
            oldest_generation: u64_at(b, 24),
            next_slab: u64_at(b, 32),
            links,
        }))
    }
}

/// Start value of the header checksums of one segment.
pub(crate) fn segment_seed(incarnation: u64, generation: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&incarnation.to_le_bytes()), &generation.to_le_bytes())
}

pub(crate) fn header_crc(seed: u32, offset: u64, header: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(seed, &offset.to_le_bytes()), &header[4..RECORD_HEADER])
}

/// Encodes a record but for what [`finish_record`] knows: seqno and header crc.
pub(crate) fn encode_record(buf: &mut Vec<u8>, stream: StreamId, kind: u8, body: &[&[u8]], staged: &[StagedRef]) -> Result<()> {
    let len: usize = body.iter().map(|b| b.len()).sum();
    let total = RECORD_HEADER + staged.len() * STAGED_LEN + len;
    if total > JOURNAL_RECORD || staged.len() > usize::from(u16::MAX) {
        return Err(Error::invalid(format!("record of {total} bytes; the most is {JOURNAL_RECORD}")).hint("stage the data first"));
    }
    buf.clear();
    buf.reserve(total + ALIGN);
    buf.extend_from_slice(&[0; RECORD_HEADER]);
    for r in staged {
        buf.extend_from_slice(&r.slab.0.to_le_bytes());
        buf.extend_from_slice(&r.offset.to_le_bytes());
        buf.extend_from_slice(&r.len.to_le_bytes());
        buf.extend_from_slice(&r.crc.to_le_bytes());
    }
    for b in body {
        buf.extend_from_slice(b);
    }
    let crc = crc32c::crc32c(&buf[RECORD_HEADER..]);
    buf.resize(total.next_multiple_of(ALIGN), 0);
    put32(buf, 4, crc);
    put64(buf, 16, stream);
    put32(buf, 24, len as u32);
    buf[28..30].copy_from_slice(&(staged.len() as u16).to_le_bytes());
    buf[30] = kind;
    buf[31] = RecordClass::Record.byte();
    Ok(())
}

pub(crate) fn finish_record(buf: &mut [u8], seed: u32, offset: u64, seqno: Seqno) {
    put64(buf, 8, seqno.0);
    let crc = header_crc(seed, offset, buf);
    put32(buf, 0, crc);
}

pub(crate) fn encode_control(class: RecordClass, seed: u32, offset: u64, seqno: Seqno) -> [u8; RECORD_HEADER] {
    let mut b = [0; RECORD_HEADER];
    b[31] = class.byte();
    finish_record(&mut b, seed, offset, seqno);
    b
}

/// A whole record found in a segment.
pub(crate) struct RecordView<'a> {
    pub(crate) class: RecordClass,
    pub(crate) kind: u8,
    pub(crate) seqno: Seqno,
    pub(crate) stream: StreamId,
    staged: &'a [u8],
    pub(crate) body: &'a [u8],
    /// Bytes from this record to the next.
    pub(crate) size: u64,
}

impl RecordView<'_> {
    pub(crate) fn staged(&self) -> Vec<StagedRef> {
        self.staged
            .chunks_exact(STAGED_LEN)
            .map(|b| StagedRef { slab: SlabId(u64_at(b, 0)), offset: u64_at(b, 8), len: u32_at(b, 16), crc: u32_at(b, 20) })
            .collect()
    }
}

/// The record at `offset` of a segment, if it is whole.
pub(crate) fn parse_record(segment: &[u8], seed: u32, offset: u64) -> Option<RecordView<'_>> {
    let rest = segment.get(usize::try_from(offset).ok()?..)?;
    let header = rest.get(..RECORD_HEADER)?;
    let class = RecordClass::from_byte(header[31])?;
    let (len, count) = (u32_at(header, 24) as usize, usize::from(u16_at(header, 28)));
    let end = RECORD_HEADER + count * STAGED_LEN + len;
    if end > JOURNAL_RECORD || end > rest.len() || u32_at(header, 0) != header_crc(seed, offset, header) {
        return None;
    }
    let content = &rest[RECORD_HEADER..end];
    if u32_at(header, 4) != crc32c::crc32c(content) {
        return None;
    }
    let (staged, body) = content.split_at(count * STAGED_LEN);
    Some(RecordView {
        class,
        kind: header[30],
        seqno: Seqno(u64_at(header, 8)),
        stream: u64_at(header, 16),
        staged,
        body,
        size: end.next_multiple_of(ALIGN) as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decoders_refuse_or_return(bytes in proptest::collection::vec(any::<u8>(), 0..5000), at in 0u64..5000) {
            let _ = SegmentHeader::decode(&bytes);
            let _ = Slot::decode(&bytes);
            let _ = decode_slab_header(&bytes);
            prop_assert!(parse_record(&bytes, 1, at).is_none_or(|r| r.size as usize <= bytes.len() + ALIGN));
        }
        #[test]
        fn a_record_is_whole_only_where_it_was_written(body in proptest::collection::vec(any::<u8>(), 0..200), flip in 0usize..10_000) {
            let refs = [StagedRef { slab: SlabId(3), offset: 512, len: 9, crc: 4 }];
            let mut buf = Vec::new();
            encode_record(&mut buf, 7, 2, &[&body], &refs).unwrap();
            finish_record(&mut buf, 11, 512, Seqno(5));
            let mut segment = vec![0; 512];
            segment.extend_from_slice(&buf);
            let r = parse_record(&segment, 11, 512).unwrap();
            prop_assert_eq!((r.seqno, r.stream, r.kind, r.body, r.staged()), (Seqno(5), 7, 2, &body[..], refs.to_vec()));
            prop_assert_eq!(r.size as usize, buf.len());
            prop_assert!(parse_record(&segment, 12, 512).is_none());
            let mut moved = vec![0; 520];
            moved.extend_from_slice(&buf);
            prop_assert!(parse_record(&moved, 11, 520).is_none());
            let covered = RECORD_HEADER + STAGED_LEN + body.len();
            segment[512 + flip % covered] ^= 1 << (flip % 8);
            prop_assert!(parse_record(&segment, 11, 512).is_none());
        }
    }

    #[test]
    fn a_newer_version_is_named_not_taken_for_garbage() {
        let mut b = SegmentHeader { incarnation: 1, generation: 2, first: Seqno(3), flushed: Seqno(2) }.encode();
        b[4] = 9;
        let crc = crc32c::crc32c(&b[..60]);
        put32(&mut b, 60, crc);
        assert!(SegmentHeader::decode(&b).unwrap_err().to_string().contains("version 9"));
    }
}
