//! The store rim: object stores as the engine sees them.
//!
//! One [`StoreUrl`] names a store (S3, GCS, a directory); one [`Store`] reads and writes it with exact conditional writes, deadlines,
//! counters and errors of [`hiloop_types::ErrorKind`]. Below it stands the [`Backend`] seam: [`cloud`](crate::Store::open) over the crate
//! object_store, [`FileBackend`], [`MemoryBackend`], and [`faults::Faults`], which breaks any of them on purpose.
//! [`rounds::Rounds`] counts how many reads waited for each other. [`Store::probe`] finds stores that accept conditional writes and lose races; [`conformance`] is what every backend must pass.

mod backend;
mod cloud;
pub mod conformance;
pub mod faults;
mod file;
mod hedge;
pub mod key;
mod memory;
mod probe;
pub mod rounds;
mod settle;
mod stats;
mod store;
mod url;

pub use backend::{Backend, Condition, ObjectInfo, PutOutcome, Version, Versioned};
pub use file::FileBackend;
pub use memory::MemoryBackend;
pub use settle::Settled;
pub use stats::{Call, Observed, Observer, StoreStats};
pub use store::{CreateOutcome, Store, StoreOptions, SwapOutcome, WRITE_DEADLINE};
pub use url::StoreUrl;
