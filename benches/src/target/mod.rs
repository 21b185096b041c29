//! What is measured: places to work in, each served by something else.

mod disk;
mod floor;
mod ours;
mod peers;

use std::collections::BTreeMap;
use std::path::Path;

use hiloop_types::{Error, Result};

pub use disk::Disk;
pub use floor::Floor;
pub use ours::{Durability, Ours};
pub use peers::{Bindfs, Juicefs, Peers, Rclone, Seaweedfs, version};

use crate::mounts::check_fuse;
use crate::store::StoreCounts;

/// Requests by opcode.
pub type Requests = BTreeMap<String, u64>;

/// A place to work in.
pub trait Target {
    /// Its name in the matrix and in reports.
    fn id(&self) -> &str;
    /// A directory; for a mount the mount point.
    fn root(&self) -> &Path;
    /// Processes that serve it.
    fn pids(&self) -> Vec<i32>;
    /// # Errors
    /// Where it is not (or no longer) what it says, for instance no mount.
    fn check(&self) -> Result<()> {
        check_fuse(self.root())
    }
    /// FUSE requests since the start, where they are counted.
    ///
    /// # Errors
    /// Where the daemon does not answer.
    fn requests(&mut self) -> Result<Option<Requests>> {
        Ok(None)
    }
    /// What was asked of its store, where that is counted.
    ///
    /// # Errors
    /// Where the store does not answer.
    fn store(&mut self) -> Result<Option<StoreCounts>> {
        Ok(None)
    }
    /// Seconds that it took to finish what it does behind the user's back; none where that is nothing that can be waited for.
    ///
    /// # Errors
    /// Where it does not finish.
    fn drain(&mut self) -> Result<Option<f64>> {
        Ok(None)
    }
    /// Seconds of CPU that its store used, where that is a program of ours that must not be the bottleneck.
    ///
    /// # Errors
    /// Where it is gone.
    fn store_cpu(&self) -> Result<f64> {
        Ok(0.0)
    }
    /// Whether it keeps times that are set to the nanosecond.
    fn keeps_times(&self) -> bool {
        true
    }
    /// Ends it.
    ///
    /// # Errors
    /// Where it does not end.
    fn end(self: Box<Self>) -> Result<()>;
}

/// The difference of two counts, without what did not change.
pub fn more(after: &Requests, before: &Requests) -> Requests {
    let difference = |(op, n): (&String, &u64)| (op.clone(), n.saturating_sub(*before.get(op).unwrap_or(&0)));
    after.iter().map(difference).filter(|(_, n)| *n > 0).collect()
}

fn missing(program: &str, how: &str) -> Error {
    Error::not_found(format!("{program} is not installed")).hint(how.to_owned())
}
