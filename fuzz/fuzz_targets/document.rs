//! The JSON documents of a store: heads, bases, snapshots, intents, leases, lineage, domains, forwards.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hiloop_fuzz::document(bytes);
});
