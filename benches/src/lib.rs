//! hiloop-benches.
