//! What holds for any bytes that this crate decodes, for the fuzz targets and their regression tests (`fuzz/`). A function that returns
//! has found nothing, and says whether the bytes were accepted as anything; it panics where a rule is broken.

use crate::format::{
    ANCHOR_MAGIC, HEADER_LEN, RECORD_HEADER, RecordClass, SEGMENT_MAGIC, SLAB_MAGIC, SLOT_LEN, STAGED_LEN, SegmentHeader, Slot,
    decode_slab_header, encode_control, encode_record, encode_slab_header, finish_record, header_crc, parse_record, put32, seal_header,
    u16_at, u32_at,
};

/// Segment header, anchor and staging slab header: each as it comes, and with magic, version and checksum made right.
pub fn headers(bytes: &[u8]) -> bool {
    let mut accepted = false;
    for sealed in [false, true] {
        let with = |magic: &[u8; 4], len: usize| {
            let mut b = bytes.to_vec();
            if sealed {
                b.resize(len, 0);
                seal_header(&mut b, magic);
            }
            b
        };
        if let Ok(Some(header)) = SegmentHeader::decode(&with(SEGMENT_MAGIC, HEADER_LEN)) {
            assert_eq!(SegmentHeader::decode(&header.encode()).ok().flatten(), Some(header));
            accepted = true;
        }
        if let Ok(Some(slot)) = Slot::decode(&with(ANCHOR_MAGIC, SLOT_LEN)) {
            assert_eq!(Slot::decode(&slot.encode()).ok().flatten(), Some(slot));
            accepted = true;
        }
        if let Ok(Some(id)) = decode_slab_header(&with(SLAB_MAGIC, HEADER_LEN)) {
            assert_eq!(decode_slab_header(&encode_slab_header(id)).ok().flatten(), Some(id));
            accepted = true;
        }
    }
    accepted
}

/// A record at the start of a segment: as it comes, and with both checksums made right. One that is whole has one encoding.
pub fn record(bytes: &[u8]) -> bool {
    const SEED: u32 = 7;
    let mut accepted = false;
    let mut segment = bytes.to_vec();
    for sealed in [false, true] {
        if sealed {
            if segment.len() < RECORD_HEADER {
                return false;
            }
            let end = RECORD_HEADER + usize::from(u16_at(&segment, 28)) * STAGED_LEN + u32_at(&segment, 24) as usize;
            if let Some(content) = segment.get(RECORD_HEADER..end) {
                let crc = crc32c::crc32c(content);
                put32(&mut segment, 4, crc);
            }
            let crc = header_crc(SEED, 0, &segment);
            put32(&mut segment, 0, crc);
        }
        let Some(view) = parse_record(&segment, SEED, 0) else { continue };
        let again = match view.class {
            RecordClass::Record => {
                let mut buf = Vec::new();
                encode_record(&mut buf, view.stream, view.kind, &[view.body], &view.staged()).expect("what was read can be written");
                finish_record(&mut buf, SEED, 0, view.seqno);
                buf
            }
            class => encode_control(class, SEED, 0, view.seqno).to_vec(),
        };
        assert_eq!(again.len() as u64, if view.class == RecordClass::Record { view.size } else { RECORD_HEADER as u64 });
        let back = parse_record(&again, SEED, 0).expect("what was written can be read");
        assert_eq!((back.class, back.seqno), (view.class, view.seqno));
        if view.class == RecordClass::Record {
            assert_eq!((back.kind, back.stream, back.staged(), back.body), (view.kind, view.stream, view.staged(), view.body));
            let end = RECORD_HEADER + view.staged().len() * STAGED_LEN + view.body.len();
            assert_eq!(again[..end], segment[..end]);
        }
        // Elsewhere it is nothing.
        let mut moved = vec![0; 8];
        moved.extend_from_slice(&again);
        assert!(parse_record(&moved, SEED, 8).is_none());
        accepted = true;
    }
    accepted
}
