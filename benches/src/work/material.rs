//! What the steps work on: made once, on the disk, the same in every run.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use hiloop_types::{Error, Result};
use serde::{Deserialize, Serialize};

use super::{Step, builds};
use crate::run::run;
use crate::tree::{Digest, digest, sources, walk};

/// How much of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Files of the source tree.
    pub files: u32,
    /// The large file, MiB.
    pub big_mib: u32,
    /// Random reads of 4 KiB.
    pub reads: u32,
    /// Random writes of 4 KiB, and appends of 512 bytes.
    pub writes: u32,
    /// Appends with an fsync each (of each writer).
    pub appends: u32,
    /// SQLite transactions.
    pub commits: u32,
    /// Files that are created, renamed, unlinked.
    pub names: u32,
}

/// The environment of git: nothing of this machine, the same commit everywhere.
pub(super) const GIT: [(&str, &str); 9] = [
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_AUTHOR_NAME", "bench"),
    ("GIT_AUTHOR_EMAIL", "bench@localhost"),
    ("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z"),
    ("GIT_COMMITTER_NAME", "bench"),
    ("GIT_COMMITTER_EMAIL", "bench@localhost"),
    ("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z"),
    // `git status` then writes no index, as tools that poll it ask it to.
    ("GIT_OPTIONAL_LOCKS", "0"),
];

/// A file of the source tree.
pub(super) struct Source {
    pub(super) mode: u32,
    /// Seconds and nanoseconds.
    pub(super) modified: (i64, i64),
    pub(super) content: Vec<u8>,
}

/// The material, and what must come out.
pub struct Material {
    /// Sizes.
    pub size: Size,
    pub(super) builds: PathBuf,
    pub(super) tree: PathBuf,
    pub(super) tar: PathBuf,
    pub(super) repository: PathBuf,
    pub(super) sql: PathBuf,
    pub(super) files: BTreeMap<PathBuf, Source>,
    pub(super) digest: Digest,
    pub(super) commit: String,
}

impl Material {
    /// Makes it below `dir`.
    ///
    /// # Errors
    /// What the operating system says, or a program that fails.
    pub fn make(dir: &Path, size: Size, steps: &[Step]) -> Result<Self> {
        let at = |name: &str| dir.join(format!("material-{}", size.files)).join(name);
        let (tree, tar, repository, sql) = (at("tree"), at("tree.tar"), at("repository"), at("commits.sql"));
        sources(&tree, size.files)?;
        let pack = ["--format=posix".as_ref(), "-cf".as_ref(), tar.as_os_str(), ".".as_ref()];
        run(Path::new("tar"), &pack, &tree, &[], None)?;
        let mut text =
            String::from("PRAGMA journal_mode=WAL;\nPRAGMA synchronous=FULL;\nCREATE TABLE t(id INTEGER PRIMARY KEY, body TEXT);\n");
        (0..size.commits).for_each(|n| text.push_str(&format!("INSERT INTO t VALUES({n}, 'row {n} {}');\n", "x".repeat(100))));
        fs::write(&sql, text).map_err(|e| Error::io(sql.display(), &e))?;
        let clone = ["-R".as_ref(), tree.as_os_str(), repository.as_os_str()];
        run(Path::new("cp"), &clone, dir, &[], None)?;
        let git = |args: &[&str]| run(Path::new("git"), args, &repository, &GIT, None);
        git(&["init", "-q", "-b", "main"])?;
        git(&["add", "-A"])?;
        git(&["-c", "gc.auto=0", "commit", "-q", "-m", "all"])?;
        let commit = git(&["rev-parse", "HEAD"])?;
        let mut files = BTreeMap::new();
        for (path, meta) in walk(&tree)?.into_iter().filter(|(_, m)| m.is_file()) {
            let content = fs::read(&path).map_err(|e| Error::io(path.display(), &e))?;
            let name = path.strip_prefix(&tree).unwrap_or(&path).to_owned();
            let modified = (meta.mtime(), meta.mtime_nsec());
            files.insert(name, Source { mode: meta.permissions().mode(), modified, content });
        }
        let digest = digest(&tree)?;
        let builds = at("builds");
        if steps.contains(&Step::NpmCi) {
            builds::make_npm(&builds.join("npm"))?;
        }
        if steps.contains(&Step::CargoBuild) {
            builds::make_cargo(&builds.join("cargo"))?;
        }
        Ok(Self { size, builds, tree, tar, repository, sql, files, digest, commit })
    }

    /// A path on the disk that it lies on.
    pub fn disk(&self) -> &Path {
        &self.tree
    }

    /// Files that a warm open-read-close touches: the small ones.
    pub(super) fn small(&self) -> impl Iterator<Item = (&PathBuf, &Source)> {
        self.files.iter().filter(|(_, s)| s.content.len() <= 8 << 10).take(self.size.names as usize)
    }
}

/// Bytes of a block of the large file.
pub(crate) const MIB: usize = 1 << 20;

/// A MiB of the large file: bytes that do not compress, all blocks different.
pub(crate) fn block(n: u32) -> Vec<u8> {
    let mut x = (u64::from(n) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut out = Vec::with_capacity(MIB);
    while out.len() < MIB {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend_from_slice(&x.to_le_bytes());
    }
    out
}

/// Places of random access to a file of `mib` MiB: the same ones in every run.
pub(super) fn places(count: u32, mib: u32) -> impl Iterator<Item = u64> {
    let pages = u64::from(mib) * 256;
    let mut x = 0x2545_f491_4f6c_dd1d_u64;
    (0..count).map(move |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x % pages * 4096
    })
}

/// What the `n`th random write writes.
pub(super) fn page(n: u32) -> [u8; 4096] {
    let mut page = [n as u8; 4096];
    page[..4].copy_from_slice(&n.to_le_bytes());
    page
}
