//! Checking what the steps left: a figure of wrong content is no figure.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use hiloop_types::{Error, Result};

use super::go::{at, names};
use super::material::{GIT, MIB, block, page, places};
use super::{Material, Step, builds};
use crate::run::run;
use crate::tree::{Digest, digest};

impl Material {
    /// # Errors
    /// `Corrupt` where a step left something else than it should; what the operating system says.
    pub fn check(&self, step: Step, dir: &Path, keeps_times: bool) -> Result<()> {
        let wrong = |what: &str| Err(Error::corrupt(what.to_owned()).at(dir.display()));
        let tree = dir.join("tree");
        let git = |args: &[&str], at: &Path| run(Path::new("git"), args, at, &GIT, None);
        match step {
            Step::Copy => self.check_copied(&tree, keeps_times),
            Step::Untar => {
                let found = digest(&dir.join("unpacked"))?;
                let wanted = if keeps_times { self.digest } else { Digest { times: found.times, ..self.digest } };
                if found == wanted { Ok(()) } else { wrong("tar unpacked something else") }
            }
            Step::GitAdd => {
                let staged = git(&["ls-files"], &tree)?.lines().count();
                if staged == self.files.len() { Ok(()) } else { wrong("git has not staged all files") }
            }
            Step::GitCommit => {
                git(&["fsck", "--strict"], &tree)?;
                if git(&["rev-parse", "HEAD"], &tree)? == self.commit { Ok(()) } else { wrong("git made another commit") }
            }
            Step::GitClone => {
                let clone = dir.join("clone");
                let same = git(&["rev-parse", "HEAD"], &clone)? == self.commit && git(&["status", "--porcelain"], &clone)?.is_empty();
                if same { Ok(()) } else { wrong("the clone is another tree") }
            }
            Step::WriteBig => self.check_big(&dir.join("big"), false),
            Step::RandomWrite => self.check_big(&dir.join("big"), true),
            Step::CopyRange => {
                let (copy, big) = (dir.join("big-copy"), dir.join("big"));
                let same = run(Path::new("cmp"), &[&big, &copy], dir, &[], None);
                same.map(drop).or_else(|_| wrong("copy_file_range copied something else"))
            }
            Step::Append => self.check_log(&dir.join("log"), self.size.writes),
            Step::AppendSync => self.check_log(&dir.join("synced-0"), self.size.appends),
            Step::Sync16 => (0..16).try_for_each(|w| self.check_log(&dir.join(format!("writer-{w}")), self.size.appends)),
            Step::Sqlite => {
                let asked = ["-batch", "rows.db", "PRAGMA integrity_check; PRAGMA journal_mode; SELECT count(*), sum(id) FROM t;"];
                let (said, n) = (run(Path::new("sqlite3"), &asked, dir, &[], None)?, u64::from(self.size.commits));
                if said == format!("ok\nwal\n{n}|{}\n", n * (n - 1) / 2) { Ok(()) } else { wrong(&format!("SQLite says {said:?}")) }
            }
            Step::Create => self.check_names(dir, "new-"),
            Step::Rename => self.check_names(dir, "old-"),
            Step::Unlink => {
                let names = dir.join("names");
                let left = at(&names, fs::read_dir(&names))?.count();
                if left == 0 { at(&names, fs::remove_dir(&names)) } else { wrong(&format!("{left} names are left")) }
            }
            Step::Remove => {
                if tree.exists() {
                    wrong("the tree is still there")
                } else {
                    Ok(())
                }
            }
            Step::NpmCi => builds::check_npm(&dir.join("app")),
            Step::CargoBuild => builds::check_cargo(&dir.join("crates")),
            // These look at what they read while they read it.
            Step::Walk | Step::WalkAgain | Step::ReadAll | Step::OpenClose | Step::GitStatus => Ok(()),
            Step::GitStatusAgain | Step::ReadBig | Step::ReadDropped | Step::MapBig | Step::RandomRead => Ok(()),
        }
    }

    /// By known names, so that no directory is listed: the walk that follows must list it first.
    fn check_copied(&self, tree: &Path, keeps_times: bool) -> Result<()> {
        for (name, source) in &self.files {
            let path = tree.join(name);
            let meta = at(&path, fs::symlink_metadata(&path))?;
            let times = !keeps_times || (meta.mtime(), meta.mtime_nsec()) == source.modified;
            let content = at(&path, fs::read(&path))?;
            let wrong = if content != source.content {
                format!("{} bytes, not those of the source", content.len())
            } else if meta.permissions().mode() != source.mode {
                format!("mode {:o} instead of {:o}", meta.permissions().mode(), source.mode)
            } else if !times {
                "another modification time".to_owned()
            } else {
                continue;
            };
            return Err(Error::corrupt(format!("the copy has {wrong}")).at(path.display()));
        }
        Ok(())
    }

    fn check_big(&self, path: &Path, rewritten: bool) -> Result<()> {
        let mut file = at(path, File::open(path))?;
        let mut pages = std::collections::BTreeMap::new();
        if rewritten {
            pages.extend(places(self.size.writes, self.size.big_mib).zip(0u32..));
        }
        let blocks: Vec<Vec<u8>> = (0..16).map(block).collect();
        let mut buffer = vec![0; MIB];
        for n in 0..self.size.big_mib {
            at(path, file.read_exact(&mut buffer))?;
            let mut wanted = blocks[n as usize % blocks.len()].clone();
            wanted[..4].copy_from_slice(&n.to_le_bytes());
            let start = u64::from(n) * MIB as u64;
            for (place, write) in pages.range(start..start + MIB as u64) {
                let within = (place - start) as usize;
                wanted[within..within + 4096].copy_from_slice(&page(*write));
            }
            if buffer != wanted {
                return Err(Error::corrupt(format!("MiB {n} is wrong")).at(path.display()));
            }
        }
        match at(path, file.read(&mut buffer))? {
            0 => Ok(()),
            _ => Err(Error::corrupt("the file is too long").at(path.display())),
        }
    }

    fn check_log(&self, path: &Path, count: u32) -> Result<()> {
        let content = at(path, fs::read(path))?;
        let same = content.len() == count as usize * 512 && content.chunks(512).zip(0..).all(|(line, n)| *line == page(n)[..512]);
        if same { Ok(()) } else { Err(Error::corrupt("appends are missing or mixed").at(path.display())) }
    }

    fn check_names(&self, dir: &Path, prefix: &'static str) -> Result<()> {
        let parent = dir.join("names");
        let listed = at(&parent, fs::read_dir(&parent))?.count();
        let there = names(dir, prefix, self.size.names).all(|path| fs::symlink_metadata(path).is_ok());
        if listed == self.size.names as usize && there {
            return Ok(());
        }
        Err(Error::corrupt(format!("{listed} names, not all of them the right ones")).at(parent.display()))
    }
}
