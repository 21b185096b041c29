//! A node of a manifest tree, with what its keys and values mean.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hiloop_fuzz::manifest_node(bytes);
});
