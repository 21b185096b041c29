//! Doing the steps.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hiloop_types::{Error, Result};

use super::material::{GIT, MIB, block, page, places};
use super::{Material, Step, builds};
use crate::deadline::Deadline;
use crate::run::run_within;
use crate::tree::{make_directory, walk};

/// Operations between two looks at the time box.
const LOOK: usize = 64;

pub(super) fn at<T>(path: &Path, result: std::io::Result<T>) -> Result<T> {
    result.map_err(|e| Error::io(path.display(), &e))
}

pub(super) fn names(dir: &Path, prefix: &'static str, count: u32) -> impl Iterator<Item = PathBuf> {
    let dir = dir.join("names");
    (0..count).map(move |n| dir.join(format!("{prefix}{n:06}")))
}

fn each<T>(items: impl Iterator<Item = T>, limit: &Deadline, mut work: impl FnMut(T) -> Result<()>) -> Result<()> {
    for (n, item) in items.enumerate() {
        if n.is_multiple_of(LOOK) {
            limit.check()?;
        }
        work(item)?;
    }
    Ok(())
}

impl Material {
    /// Prepares what a step needs and does not count.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn prepare(&self, step: Step, dir: &Path) -> Result<()> {
        match step {
            Step::Create => make_directory(&dir.join("names")),
            Step::Untar => make_directory(&dir.join("unpacked")),
            Step::NpmCi => builds::copy(&self.builds.join("npm/app"), &dir.join("app")),
            Step::CargoBuild => builds::copy(&self.builds.join("cargo"), &dir.join("crates")),
            Step::ReadDropped => {
                // Of all file systems: what a daemon reads must come from the disk, too.
                let control = Path::new("/proc/sys/vm/drop_caches");
                at(control, fs::write(control, "1"))
            }
            _ => Ok(()),
        }
    }

    /// Does a step in `dir`.
    ///
    /// # Errors
    /// What the operating system or a program says; `Unavailable` where the time box ends.
    pub fn go(&self, step: Step, dir: &Path, limit: &Deadline) -> Result<()> {
        let tree = dir.join("tree");
        let big = dir.join("big");
        let git = |args: &[&str], at: &Path| run_within(limit.left(), Path::new("git"), args, at, &GIT, None).map(drop);
        let program = |name: &str, args: &[&std::ffi::OsStr]| run_within(limit.left(), Path::new(name), args, dir, &[], None).map(drop);
        match step {
            // Not `-a`: it sets access lists, and SeaweedFS then shows other modes.
            Step::Copy => program("cp", &["-dR".as_ref(), "--preserve=timestamps".as_ref(), self.tree.as_os_str(), tree.as_os_str()]),
            Step::Untar => program("tar", &["-xf".as_ref(), self.tar.as_os_str(), "-C".as_ref(), dir.join("unpacked").as_os_str()]),
            Step::Walk | Step::WalkAgain => {
                let files = walk(&tree)?.iter().filter(|(_, m)| m.is_file()).count();
                // git has put more there in a second round of the same directory; fewer are wrong.
                if files < self.files.len() {
                    Err(Error::corrupt(format!("the walk found {files} files")).at(tree.display()))
                } else {
                    Ok(())
                }
            }
            Step::ReadAll => {
                let mut buffer = Vec::new();
                each(self.files.iter(), limit, |(name, source)| self.read_one(&tree.join(name), source.content.len(), &mut buffer))
            }
            Step::OpenClose => {
                let mut buffer = Vec::new();
                each(self.small(), limit, |(name, source)| self.read_one(&tree.join(name), source.content.len(), &mut buffer))
            }
            Step::GitAdd => {
                git(&["init", "-q", "-b", "main"], &tree)?;
                git(&["add", "-A"], &tree)
            }
            Step::GitStatus | Step::GitStatusAgain => git(&["status", "--porcelain"], &tree),
            Step::GitCommit => git(&["-c", "gc.auto=0", "commit", "-q", "-m", "all"], &tree),
            Step::GitClone => {
                let from = format!("file://{}", self.repository.display());
                git(&["clone", "-q", &from, "clone"], dir)
            }
            Step::WriteBig => {
                let file = at(&big, File::create(&big))?;
                let mut blocks: Vec<Vec<u8>> = (0..16).map(block).collect();
                each(0..self.size.big_mib, limit, |n| {
                    let data = &mut blocks[n as usize % 16];
                    data[..4].copy_from_slice(&n.to_le_bytes());
                    at(&big, file.write_all_at(data, u64::from(n) * MIB as u64))
                })?;
                at(&big, file.sync_all())
            }
            Step::ReadBig | Step::ReadDropped => {
                let mut file = at(&big, File::open(&big))?;
                let mut buffer = vec![0; MIB];
                each(0..self.size.big_mib, limit, |n| {
                    at(&big, file.read_exact(&mut buffer))?;
                    if buffer[..4] == n.to_le_bytes() { Ok(()) } else { Err(Error::corrupt(format!("block {n}")).at(big.display())) }
                })
            }
            Step::MapBig => self.map(&big, limit),
            Step::RandomRead => {
                let file = at(&big, File::open(&big))?;
                let mut buffer = [0; 4096];
                each(places(self.size.reads, self.size.big_mib), limit, |place| at(&big, file.read_exact_at(&mut buffer, place)))
            }
            Step::RandomWrite => {
                let file = at(&big, OpenOptions::new().write(true).open(&big))?;
                let all = places(self.size.writes, self.size.big_mib).zip(0..);
                each(all, limit, |(place, n)| at(&big, file.write_all_at(&page(n), place)))
            }
            Step::Append => {
                let path = dir.join("log");
                let mut file = at(&path, OpenOptions::new().append(true).create(true).open(&path))?;
                each(0..self.size.writes, limit, |n| at(&path, file.write_all(&page(n)[..512])))
            }
            Step::AppendSync => self.append_sync(&dir.join("synced-0"), limit),
            Step::Sync16 => {
                let files: Vec<PathBuf> = (0..16).map(|w| dir.join(format!("writer-{w}"))).collect();
                std::thread::scope(|scope| {
                    let writers: Vec<_> = files.iter().map(|path| scope.spawn(|| self.append_sync(path, limit))).collect();
                    writers.into_iter().try_for_each(|w| w.join().map_err(|_| Error::internal("a writer panicked"))?)
                })
            }
            Step::Sqlite => {
                let args = ["-batch", "-bail", "rows.db"];
                run_within(limit.left(), Path::new("sqlite3"), &args, dir, &[], Some(&self.sql)).map(drop)
            }
            Step::Create => each(names(dir, "new-", self.size.names), limit, |path| {
                at(&path, OpenOptions::new().write(true).create_new(true).mode(0o644).open(&path)).map(drop)
            }),
            Step::Rename => {
                let both = names(dir, "new-", self.size.names).zip(names(dir, "old-", self.size.names));
                each(both, limit, |(from, to)| at(&from, fs::rename(&from, &to)))
            }
            Step::Unlink => each(names(dir, "old-", self.size.names), limit, |path| at(&path, fs::remove_file(&path))),
            Step::CopyRange => self.copy_range(&big, &dir.join("big-copy"), limit),
            Step::NpmCi => builds::npm_ci(&self.builds.join("npm"), &dir.join("app"), limit.left()),
            Step::CargoBuild => builds::cargo_build(&dir.join("crates"), limit.left()),
            Step::Remove => program("rm", &["-r".as_ref(), tree.as_os_str()]),
        }
    }

    fn read_one(&self, path: &Path, len: usize, buffer: &mut Vec<u8>) -> Result<()> {
        buffer.resize(len, 0);
        let mut file = at(path, File::open(path))?;
        at(path, file.read_exact(buffer))
    }

    fn append_sync(&self, path: &Path, limit: &Deadline) -> Result<()> {
        let mut file = at(path, OpenOptions::new().append(true).create(true).open(path))?;
        each(0..self.size.appends, limit, |n| {
            at(path, file.write_all(&page(n)[..512]))?;
            at(path, file.sync_data())
        })
    }

    fn map(&self, big: &Path, limit: &Deadline) -> Result<()> {
        let file = at(big, File::open(big))?;
        let len = self.size.big_mib as usize * MIB;
        let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a new mapping of a descriptor that is open; the kernel chooses the address.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, read, shared, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return at(big, Err(std::io::Error::last_os_error()));
        }
        let looked = each((0..len).step_by(4096), limit, |offset| {
            // SAFETY: within the mapping, which lives until below; nobody truncates the file meanwhile.
            let byte = unsafe { start.cast::<u8>().add(offset).read_volatile() };
            // The first byte of each MiB is the block's number.
            let wrong = offset % MIB == 0 && byte != (offset / MIB) as u8;
            if wrong { Err(Error::corrupt(format!("byte {offset} of the mapping")).at(big.display())) } else { Ok(()) }
        });
        // SAFETY: the mapping made above, used by nobody any more.
        unsafe { libc::munmap(start, len) };
        looked
    }

    fn copy_range(&self, from: &Path, to: &Path, limit: &Deadline) -> Result<()> {
        let (source, target) = (at(from, File::open(from))?, at(to, File::create(to))?);
        let mut left = u64::from(self.size.big_mib) << 20;
        while left > 0 {
            limit.check()?;
            let none = std::ptr::null_mut();
            // SAFETY: both descriptors are open, and without offsets the kernel uses and moves their own.
            let copied = unsafe { libc::copy_file_range(source.as_raw_fd(), none, target.as_raw_fd(), none, left as usize, 0) };
            match copied {
                ..0 => return at(to, Err(std::io::Error::last_os_error())),
                0 => return Err(Error::corrupt("the source ended early").at(from.display())),
                n => left -= n as u64,
            }
        }
        Ok(())
    }
}
