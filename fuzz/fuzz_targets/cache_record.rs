//! A record of a cache slab.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hiloop_fuzz::cache_record(bytes);
});
