//! What must hold for any bytes that a decoder of ours is given. One function for each fuzz target (`fuzz_targets/`): it panics where a
//! rule is broken, and else says whether the bytes were accepted as anything.
//!
//! Rules, beside never panicking: what is read is written so that it reads the same; a format that says it has one encoding has
//! it; what a decoder allocates is bounded by the bytes that it was given, whatever lengths they claim. Checksums that a fuzzer could
//! not guess are made right first, so that what lies behind them is reached.
//!
//! `tests/seeds.rs` runs every target over its seeds and over all inputs that once broke a rule, in every `cargo test`.

mod formats;
mod memory;
mod node;
// The file itself: the crate around it holds FUSE and RocksDB, which a fuzz build would compile and link for nothing.
#[allow(dead_code, reason = "only the two readers are wanted of it")]
#[path = "../../fusefs/src/daemon/protocol.rs"]
mod protocol;
mod source;

pub use formats::{chunk_frame, pack, protocol_line, schema, store_url};
pub use memory::{FLOOR, bounded};
pub use node::manifest_node;
pub use source::{oci_layout, tar};

/// What must hold for any bytes; true where they were accepted.
pub type Target = fn(&[u8]) -> bool;

/// A target by its name, as the folders of seeds are called.
pub const TARGETS: [(&str, Target); 14] = [
    ("store_url", store_url),
    ("chunk_frame", chunk_frame),
    ("pack", pack),
    ("manifest_node", manifest_node),
    ("schema", schema),
    ("document", document),
    ("journal_headers", journal_headers),
    ("journal_record", journal_record),
    ("journal_body", journal_body),
    ("cache_record", cache_record),
    ("cache_row", cache_row),
    ("protocol", protocol_line),
    ("tar", tar),
    ("oci_layout", oci_layout),
];

/// The JSON documents of a store; the first byte picks the kind.
pub fn document(bytes: &[u8]) -> bool {
    bounded(bytes, 256, || hiloop_engine::fuzzing::document(bytes))
}
/// Headers of the journal.
pub fn journal_headers(bytes: &[u8]) -> bool {
    bounded(bytes, 16, || hiloop_journal::fuzzing::headers(bytes))
}
/// A record of the journal.
pub fn journal_record(bytes: &[u8]) -> bool {
    bounded(bytes, 16, || hiloop_journal::fuzzing::record(bytes))
}
/// The body of a journal record.
pub fn journal_body(bytes: &[u8]) -> bool {
    bounded(bytes, 1024, || hiloop_engine::fuzzing::journal_body(bytes))
}
/// A record of a cache slab.
pub fn cache_record(bytes: &[u8]) -> bool {
    bounded(bytes, 16, || hiloop_cache::fuzzing::record(bytes))
}
/// A row of the cache's index.
pub fn cache_row(bytes: &[u8]) -> bool {
    bounded(bytes, 16, || hiloop_cache::fuzzing::row(bytes))
}
