//! Steps of a developer's day on a workspace, on bindfs and on the disk's own file system.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use hiloop_env::Env;
use hiloop_types::{Error, Result};
use nix::unistd::syncfs;
use serde_json::json;

use crate::figure::{Figure, Verdict};
use crate::mounts::{Bindfs, Mounted};
use crate::run::{Tool, run, timed};
use crate::sample::Spread;
use crate::tree::{Digest, digest, make_directory, sources};

/// Files of the tree that is unpacked and committed.
const FILES: u32 = 3_000;
/// Transactions of the SQLite step.
const COMMITS: u32 = 500;
/// A step may take this much longer than on bindfs.
const TARGET: f64 = 2.0;
/// Where bindfs itself scatters more than this between rounds, a ratio to it says nothing.
const SCATTER: f64 = 3.0;

/// The environment of git: nothing of this machine, the same commit everywhere.
const GIT: [(&str, &str); 8] = [
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_AUTHOR_NAME", "bench"),
    ("GIT_AUTHOR_EMAIL", "bench@localhost"),
    ("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z"),
    ("GIT_COMMITTER_NAME", "bench"),
    ("GIT_COMMITTER_EMAIL", "bench@localhost"),
    ("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z"),
];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Untar,
    Git,
    Sqlite,
}

impl Step {
    const ALL: [Self; 3] = [Self::Untar, Self::Git, Self::Sqlite];

    fn name(self) -> String {
        match self {
            Self::Untar => format!("untar {FILES} files"),
            Self::Git => format!("git init, add, commit of {FILES} files"),
            Self::Sqlite => format!("SQLite WAL, {COMMITS} commits"),
        }
    }
}

/// What the steps work on, and what must come out.
struct Material {
    tar: PathBuf,
    sql: PathBuf,
    unpacked: Digest,
    /// The commit; the first round says which.
    commit: Option<String>,
}

impl Material {
    fn make(dir: &Path) -> Result<Self> {
        let tree = dir.join("sources");
        sources(&tree, FILES)?;
        let (tar, sql) = (dir.join("sources.tar"), dir.join("commits.sql"));
        run(Path::new("tar"), &["--format=posix".as_ref(), "-cf".as_ref(), tar.as_os_str(), ".".as_ref()], &tree, &[], None)?;
        let mut text =
            String::from("PRAGMA journal_mode=WAL;\nPRAGMA synchronous=FULL;\nCREATE TABLE t(id INTEGER PRIMARY KEY, body TEXT);\n");
        (0..COMMITS).for_each(|n| text.push_str(&format!("INSERT INTO t VALUES({n}, 'row {n} {}');\n", "x".repeat(100))));
        fs::write(&sql, text).map_err(|e| Error::io(sql.display(), &e))?;
        let unpacked = digest(&tree)?;
        fs::remove_dir_all(&tree).map_err(|e| Error::io(tree.display(), &e))?;
        Ok(Self { tar, sql, unpacked, commit: None })
    }

    fn go(&self, step: Step, dir: &Path) -> Result<()> {
        let tree = dir.join("tree");
        match step {
            Step::Untar => {
                make_directory(&tree)?;
                run(Path::new("tar"), &["-xf".as_ref(), self.tar.as_os_str()], &tree, &[], None)?;
            }
            Step::Git => {
                let git = |args: &[&str]| run(Path::new("git"), args, &tree, &GIT, None);
                git(&["init", "-q", "-b", "main"])?;
                git(&["add", "-A"])?;
                git(&["-c", "gc.auto=0", "commit", "-q", "-m", "all"])?;
            }
            Step::Sqlite => {
                run(Path::new("sqlite3"), &["-batch", "-bail", "rows.db"], dir, &[], Some(&self.sql))?;
            }
        }
        Ok(())
    }

    fn check(&mut self, step: Step, dir: &Path, keeps_times: bool) -> Result<()> {
        let tree = dir.join("tree");
        let same = match step {
            Step::Untar => {
                let found = digest(&tree)?;
                // bindfs sets times of its own: that is no fault of the content.
                let wanted = if keeps_times { self.unpacked } else { Digest { times: found.times, ..self.unpacked } };
                found == wanted
            }
            Step::Git => {
                let git = |args: &[&str]| run(Path::new("git"), args, &tree, &GIT, None);
                git(&["fsck", "--full", "--strict"])?;
                let commit = git(&["rev-parse", "HEAD"])?;
                let wanted = self.commit.get_or_insert_with(|| commit.clone());
                git(&["status", "--porcelain"])?.is_empty() && commit == *wanted
            }
            Step::Sqlite => {
                let asked = ["-batch", "rows.db", "PRAGMA integrity_check; PRAGMA journal_mode; SELECT count(*), sum(id) FROM t;"];
                let said = run(Path::new("sqlite3"), &asked, dir, &[], None)?;
                said == format!("ok\nwal\n{COMMITS}|{}\n", COMMITS * (COMMITS - 1) / 2)
            }
        };
        same.then_some(()).ok_or_else(|| Error::corrupt(format!("wrong content after: {}", step.name())).at(dir.display()))
    }
}

/// Takes all steps `rounds` times.
///
/// # Errors
/// Where a step fails, or its content is wrong.
pub fn steps(tool: &Tool, env: &Env, rounds: u32) -> Result<Vec<Figure>> {
    let mut material = Material::make(&tool.dir)?;
    let ours = Mounted::fresh(tool, "steps")?;
    let bindfs = Bindfs::new(&tool.dir.join("bindfs.below"), &tool.dir.join("bindfs.mnt"))?;
    let plain = tool.dir.join("plain");
    make_directory(&plain)?;
    let subjects: [(&'static str, PathBuf); 3] = [("ours", ours.at.clone()), ("bindfs", bindfs.at.clone()), ("disk", plain.clone())];
    let disk = fs::File::open(&plain).map_err(|e| Error::io(plain.display(), &e))?;
    let mut seconds: BTreeMap<(Step, &'static str), Vec<f64>> = BTreeMap::new();
    for round in 0..rounds {
        let mut order: Vec<_> = subjects.iter().collect();
        if !round.is_multiple_of(2) {
            order.reverse();
        }
        for step in Step::ALL {
            for (subject, at) in &order {
                let dir = at.join(format!("round-{round}"));
                make_directory(&dir)?;
                // Nobody pays for what another left behind.
                ours.flush()?;
                syncfs(disk.as_fd()).map_err(|e| Error::io(plain.display(), &e.into()))?;
                let (took, ()) = timed(env, || material.go(step, &dir))?;
                material.check(step, &dir, *subject != "bindfs")?;
                seconds.entry((step, subject)).or_default().push(took);
            }
        }
        for (_, at) in &order {
            let dir = at.join(format!("round-{round}"));
            fs::remove_dir_all(&dir).map_err(|e| Error::io(dir.display(), &e))?;
        }
    }
    drop(bindfs);
    ours.unmount()?;
    Ok(Step::ALL.iter().map(|step| figure(*step, &seconds)).collect())
}

fn figure(step: Step, seconds: &BTreeMap<(Step, &'static str), Vec<f64>>) -> Figure {
    let of = |subject: &'static str| seconds.get(&(step, subject)).map(Vec::as_slice).unwrap_or_default();
    let (ours, bindfs, disk) = (Spread::of(of("ours")), Spread::of(of("bindfs")), Spread::of(of("disk")));
    let to_bindfs = Spread::of_ratios(of("ours"), of("bindfs"));
    let to_disk = Spread::of_ratios(of("ours"), of("disk"));
    let verdict = if bindfs.scatter() > SCATTER { Verdict::Void } else { Verdict::of(to_bindfs.median <= TARGET) };
    let measured =
        format!("{to_bindfs}x bindfs, {:.2}x disk ({:.2} s; {:.2}; {:.2})", to_disk.median, ours.median, bindfs.median, disk.median);
    let values = json!({
        "ratio_bindfs": to_bindfs, "ratio_disk": to_disk, "ours_s": ours, "bindfs_s": bindfs, "disk_s": disk,
        "samples_s": { "ours": of("ours"), "bindfs": of("bindfs"), "disk": of("disk") },
    });
    Figure::new(step.name(), format!("at most {TARGET}x bindfs"), measured, verdict, values)
}
