//! What a journal record says: changes, replayed, and documents.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hiloop_fuzz::journal_body(bytes);
});
