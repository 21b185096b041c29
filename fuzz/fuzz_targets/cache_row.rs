//! A row of the cache's index.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hiloop_fuzz::cache_row(bytes);
});
