//! A store URL: what is taken has one spelling, and it is taken again.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hiloop_fuzz::store_url(bytes);
});
