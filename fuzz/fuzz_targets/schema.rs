//! One key and one value of a manifest.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hiloop_fuzz::schema(bytes);
});
