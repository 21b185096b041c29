//! A record of the journal.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hiloop_fuzz::journal_record(bytes);
});
