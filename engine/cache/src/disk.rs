//! The seam to the file system: slab files and the use of the volume they stand on.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;

use crate::policy::Usage;

/// One open slab file.
pub trait SlabFile: Send + Sync {
    /// Fills `buf` from `at`; `UnexpectedEof` behind the end.
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()>;
    /// Writes all of `buf` at `at`; `StorageFull` when there is no room, after which any part may have been written.
    fn write_all_at(&self, buf: &[u8], at: u64) -> io::Result<()>;
    /// Gives the bytes of a range back to the file system; they read as zeros.
    fn punch(&self, at: u64, len: u64) -> io::Result<()>;
    /// Length of the file, bytes.
    fn length(&self) -> io::Result<u64>;
    /// Whether the file still has a name: somebody may have emptied the directory.
    fn is_linked(&self) -> io::Result<bool>;
}

/// The directory of slab files.
pub trait Disk: Send + Sync {
    /// Ids of the slab files that are there.
    fn slabs(&self) -> io::Result<Vec<u32>>;
    /// Makes a slab file that must not exist yet.
    fn create(&self, id: u32) -> io::Result<Box<dyn SlabFile>>;
    /// Opens a slab file.
    fn open(&self, id: u32) -> io::Result<Box<dyn SlabFile>>;
    /// Removes a slab file.
    fn remove(&self, id: u32) -> io::Result<()>;
    /// Use of the file system, as `df` counts it.
    fn usage(&self) -> io::Result<Usage>;
}

/// A real directory: files named `slab-` and eight hexadecimal digits; other files are left alone.
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// The directory, made if missing.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(path)?;
        Ok(Self { path: path.to_path_buf() })
    }

    fn slab(&self, id: u32) -> PathBuf {
        self.path.join(format!("slab-{id:08x}"))
    }
}

impl Disk for Directory {
    fn slabs(&self) -> io::Result<Vec<u32>> {
        let mut out = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let digits = name.to_str().and_then(|n| n.strip_prefix("slab-")).filter(|d| d.len() == 8);
            out.extend(digits.and_then(|d| u32::from_str_radix(d, 16).ok()));
        }
        Ok(out)
    }

    fn create(&self, id: u32) -> io::Result<Box<dyn SlabFile>> {
        // The cache holds what users wrote: nobody else may read it.
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(self.slab(id))?;
        Ok(Box::new(RealSlab(file)))
    }

    fn open(&self, id: u32) -> io::Result<Box<dyn SlabFile>> {
        Ok(Box::new(RealSlab(OpenOptions::new().read(true).write(true).open(self.slab(id))?)))
    }

    fn remove(&self, id: u32) -> io::Result<()> {
        match std::fs::remove_file(self.slab(id)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    fn usage(&self) -> io::Result<Usage> {
        let s = statvfs(&self.path)?;
        let used = s.blocks().saturating_sub(s.blocks_free()) as u64;
        // What is reserved for root belongs to neither: it is how `df` computes its percentage.
        let total = used.saturating_add(s.blocks_available() as u64);
        let unit = s.fragment_size() as u64;
        Ok(Usage { total: total.saturating_mul(unit), used: used.saturating_mul(unit) })
    }
}

struct RealSlab(File);

impl SlabFile for RealSlab {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        FileExt::read_exact_at(&self.0, buf, at)
    }
    fn write_all_at(&self, buf: &[u8], at: u64) -> io::Result<()> {
        FileExt::write_all_at(&self.0, buf, at)
    }
    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        Ok(fallocate(&self.0, mode, at as i64, len as i64)?)
    }
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
    fn is_linked(&self) -> io::Result<bool> {
        Ok(self.0.metadata()?.nlink() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::BLOCK;

    #[test]
    fn punching_gives_blocks_back() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Directory::open(dir.path()).unwrap();
        let slab = disk.create(1).unwrap();
        slab.write_all_at(&[7; 1 << 20], 0).unwrap();
        let path = dir.path().join("slab-00000001");
        File::open(&path).unwrap().sync_all().unwrap();
        let before = std::fs::metadata(&path).unwrap().blocks();
        slab.punch(BLOCK, (1 << 20) - 2 * BLOCK).unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        assert!(before >= 2048 && meta.blocks() <= 32, "{before} -> {}", meta.blocks());
        assert_eq!(meta.len(), 1 << 20);
        let mut byte = [0];
        slab.read_exact_at(&mut byte, BLOCK).unwrap();
        assert_eq!(byte, [0]);
        slab.read_exact_at(&mut byte, BLOCK - 1).unwrap();
        assert_eq!(byte, [7]);
    }

    #[test]
    fn the_directory_knows_its_slabs() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Directory::open(&dir.path().join("new")).unwrap();
        disk.create(0x1f).unwrap();
        std::fs::write(dir.path().join("new/slab-note"), b"").unwrap();
        std::fs::write(dir.path().join("new/slab-1"), b"").unwrap();
        assert_eq!(disk.slabs().unwrap(), [0x1f]);
        assert_eq!(disk.create(0x1f).map(|_| ()).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let open = disk.open(0x1f).unwrap();
        assert!(open.is_linked().unwrap());
        disk.remove(0x1f).unwrap();
        disk.remove(0x1f).unwrap();
        assert!(!open.is_linked().unwrap());
        let usage = disk.usage().unwrap();
        assert!(usage.used > 0 && usage.total > usage.used);
    }
}
