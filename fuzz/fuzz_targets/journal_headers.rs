//! Segment header, anchor and staging slab header of the journal.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hiloop_fuzz::journal_headers(bytes);
});
