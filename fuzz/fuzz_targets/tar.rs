//! A tar archive, packed or not.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hiloop_fuzz::tar(bytes);
});
