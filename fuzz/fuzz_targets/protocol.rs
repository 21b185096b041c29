//! The lines between command and daemon.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hiloop_fuzz::protocol_line(bytes);
});
