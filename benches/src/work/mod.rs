//! The steps: each does the same work in a directory of any target, within a time box, and its result is checked afterwards.

mod builds;
mod check;
mod go;
mod material;

pub(crate) use material::{MIB, block};
pub use material::{Material, Size};

use serde::{Deserialize, Serialize};

macro_rules! steps {
    ($($variant:ident = $id:literal $name:literal),* $(,)?) => {
        /// One step.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[allow(missing_docs, reason = "each has a name for people beside it")]
        pub enum Step { $(#[serde(rename = $id)] $variant),* }

        impl Step {
            /// All, in the order in which they run.
            pub const ALL: &'static [Step] = &[$(Step::$variant),*];
            /// Its name in the matrix and on the command line.
            pub fn id(self) -> &'static str {
                match self { $(Step::$variant => $id),* }
            }
            /// Its name for people.
            pub fn name(self) -> &'static str {
                match self { $(Step::$variant => $name),* }
            }
        }
    };
}

steps! {
    Copy = "copy" "copy tree in", Walk = "walk" "walk and stat", WalkAgain = "walk-again" "walk and stat again",
    ReadAll = "read-all" "read all files", OpenClose = "open-close" "open, read, close warm small files",
    GitAdd = "git-add" "git init + add", GitStatus = "git-status" "git status",
    GitStatusAgain = "git-status-again" "git status again", GitCommit = "git-commit" "git commit",
    GitClone = "git-clone" "git clone", Untar = "untar" "untar",
    WriteBig = "write-big" "sequential write + fsync", ReadBig = "read-big" "sequential read, page cache",
    MapBig = "map-big" "mmap read", ReadDropped = "read-dropped" "sequential read, not in page cache", RandomRead = "random-read" "random 4 KiB reads", RandomWrite = "random-write" "random 4 KiB writes",
    Append = "append" "appending 512 B writes", AppendSync = "append-sync" "fsync'd appends",
    Sync16 = "sync-16" "16 fsync writers", Sqlite = "sqlite" "SQLite WAL commits",
    Create = "create" "create files", Rename = "rename" "rename files", Unlink = "unlink" "unlink files",
    CopyRange = "copy-range" "copy_file_range",
    NpmCi = "npm-ci" "npm ci, offline", CargoBuild = "cargo-build" "cargo build, offline", Remove = "rm" "rm -r",
}

impl Step {
    /// The sixteen of the issue, over which means are taken.
    pub const SIXTEEN: [Self; 16] = [
        Self::Copy,
        Self::Walk,
        Self::WalkAgain,
        Self::ReadAll,
        Self::GitAdd,
        Self::GitStatus,
        Self::WriteBig,
        Self::ReadBig,
        Self::RandomRead,
        Self::RandomWrite,
        Self::AppendSync,
        Self::Sqlite,
        Self::Create,
        Self::Rename,
        Self::Unlink,
        Self::Remove,
    ];

    /// What must have been done before, directly.
    pub fn needs(self) -> &'static [Self] {
        match self {
            Self::Walk | Self::ReadAll | Self::GitAdd | Self::OpenClose | Self::Remove => &[Self::Copy],
            Self::WalkAgain => &[Self::Walk],
            Self::GitStatus | Self::GitCommit => &[Self::GitAdd],
            Self::GitStatusAgain => &[Self::GitStatus],
            Self::ReadBig | Self::ReadDropped | Self::MapBig | Self::RandomRead | Self::CopyRange => &[Self::WriteBig],
            Self::RandomWrite => &[Self::WriteBig],
            Self::Rename => &[Self::Create],
            Self::Unlink => &[Self::Rename],
            _ => &[],
        }
    }

    /// These steps and all that they need, in the order in which they run.
    pub fn with_needs(steps: &[Self]) -> Vec<Self> {
        let mut wanted = steps.to_vec();
        let mut next = 0;
        while let Some(step) = wanted.get(next).copied() {
            wanted.extend(step.needs().iter().filter(|n| !wanted.contains(n)).copied().collect::<Vec<_>>());
            next += 1;
        }
        Self::ALL.iter().filter(|s| wanted.contains(s)).copied().collect()
    }

    /// Whether it builds something: that needs material of its own, and tools that a machine may not have.
    pub fn is_build(self) -> bool {
        matches!(self, Self::NpmCi | Self::CargoBuild)
    }

    /// Device flushes that it cannot do with fewer of, whatever the file system: the writers of [`Step::Sync16`] may share one.
    pub fn flushes_needed(self, size: &Size) -> u64 {
        match self {
            Self::AppendSync => u64::from(size.appends),
            Self::Sqlite => u64::from(size.commits),
            Self::Sync16 => u64::from(size.appends),
            Self::WriteBig => 1,
            _ => 0,
        }
    }

    /// Operations of one leg, for counts per operation.
    pub fn operations(self, size: &Size) -> u64 {
        u64::from(match self {
            Self::Copy | Self::Walk | Self::WalkAgain | Self::ReadAll | Self::Untar | Self::Remove => size.files,
            Self::OpenClose => size.files.min(size.names),
            Self::GitAdd | Self::GitStatus | Self::GitStatusAgain | Self::GitCommit | Self::GitClone => size.files,
            Self::WriteBig | Self::ReadBig | Self::ReadDropped | Self::MapBig | Self::CopyRange => size.big_mib,
            Self::RandomRead => size.reads,
            Self::RandomWrite | Self::Append => size.writes,
            Self::AppendSync => size.appends,
            Self::Sync16 => size.appends * 16,
            Self::Sqlite => size.commits,
            Self::Create | Self::Rename | Self::Unlink => size.names,
            Self::NpmCi => builds::PACKAGES * builds::MODULES,
            Self::CargoBuild => builds::CRATES,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_step_needs_runs_before_it() {
        for step in Step::ALL {
            let all = Step::with_needs(&[*step]);
            assert_eq!(all.last(), Some(step), "{step:?}");
        }
        assert_eq!(Step::with_needs(&[Step::Unlink]), [Step::Create, Step::Rename, Step::Unlink]);
        assert_eq!(Step::with_needs(&[Step::WalkAgain, Step::Sqlite]), [Step::Copy, Step::Walk, Step::WalkAgain, Step::Sqlite]);
    }

    #[test]
    fn names_in_the_matrix_are_those_that_serde_reads() {
        for step in Step::ALL {
            let read: Step = serde_json::from_value(step.id().into()).unwrap_or_else(|e| panic!("{step:?}: {e}"));
            assert_eq!(read, *step);
        }
    }
}
