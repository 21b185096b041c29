//! The disk cache of a node: one for all its workspaces, keyed by content, holding chunks and nodes as they stand in the store.
//!
//! Rules (`protocols.md` 5.4):
//!
//! - Each read checks a CRC per 16 KiB; the caller checks the BLAKE3 digest at fill, and again at the first use after a restart
//!   ([`Hit::verified`]). What does not hold is a miss, is counted, and is never served.
//! - An entry leaves when it was not used for its time to live, or, oldest first, when the cache's file system (or the cap)
//!   passes the high watermark, down to the low one; pressure stops at the floor. Leaving takes two steps: *condemned* first, and
//!   deleted after a delay in which any use keeps it. Condemned bytes count as free. Pinned entries are not condemned,
//!   entries being read are not deleted.
//! - Deleting punches a hole in the slab; a slab without entries is removed, the rest of a nearly empty one is moved.
//! - A fill that finds no room is dropped and counted; it is never an error to the reader.
//! - Losing the index, a slab, or all of it loses only cache.
//!
//! [`SingleFlight`] beside it makes concurrent misses of one key one fetch.

mod cache;
mod disk;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod options;
mod policy;
mod record;
mod residency;
mod shard;
mod single_flight;
mod slab;
mod stats;
mod upkeep;

#[cfg(test)]
mod tests;

pub use cache::Cache;
pub use disk::{Directory, Disk, SlabFile};
pub use frame::{CacheKey, Frame, Hit};
pub use options::CacheOptions;
pub use policy::Usage;
pub use single_flight::{Abandoned, Joined, Leader, SingleFlight, Waiter};
pub use stats::{CacheStats, Fill, FillDrop};
