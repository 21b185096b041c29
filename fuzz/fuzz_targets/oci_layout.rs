//! An OCI image layout with one strange part.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hiloop_fuzz::oci_layout(bytes);
});
