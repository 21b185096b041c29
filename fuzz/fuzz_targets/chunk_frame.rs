//! A chunk's frame, and the way there and back.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hiloop_fuzz::chunk_frame(bytes);
});
