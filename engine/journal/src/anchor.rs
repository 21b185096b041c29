//! The anchor file: which links and generations count. Two copies, written one after the other, flushed after each.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hiloop_types::{Error, Result, ResultExt};

use crate::disk::{Disk, DiskFile};
use crate::format::{SLOT_LEN, Slot};

pub(crate) struct Anchor {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    pub(crate) slot: Option<Slot>,
}

impl Anchor {
    /// Opens or makes the file; `slot` is the newest whole copy, or `None` if there never was one.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path, names: &[String]) -> Result<Self> {
        let path = dir.join("anchor");
        let exists = names.iter().any(|n| n == "anchor");
        let file = if exists { disk.open(&path) } else { disk.create(&path) }.at(path.display())?;
        let mut newest: Option<Slot> = None;
        for copy in 0..2u64 {
            let mut b = vec![0; SLOT_LEN];
            let n = file.read_at(&mut b, copy * SLOT_LEN as u64).at(path.display())?;
            if let Some(slot) = Slot::decode(&b[..n]).at(path.display())?
                && newest.as_ref().is_none_or(|o| o.update < slot.update)
            {
                newest = Some(slot);
            }
        }
        Ok(Self { path, file, slot: newest })
    }
    /// The error when segments hold records and so an anchor must have been written.
    pub(crate) fn missing(&self) -> Error {
        Error::corrupt("no whole copy of the anchor beside segments that hold records").at(self.path.display())
    }
    /// Replaces the content durably: at each moment at least one copy on disk is whole.
    pub(crate) fn write(&mut self, mut slot: Slot) -> Result<()> {
        slot.update = self.slot.as_ref().map_or(1, |s| s.update + 1);
        let bytes = slot.encode();
        for copy in 0..2u64 {
            self.file.write_at(&bytes, copy * SLOT_LEN as u64).at(self.path.display())?;
            self.file.sync_data().at(self.path.display())?;
        }
        self.slot = Some(slot);
        Ok(())
    }
}
