//! Power cuts under the node directory (`protocols.md` 1, row "power cut, kernel crash"): RocksDB, journal, staging, cache and daemon run
//! on a file system that loses unflushed writes and names. After each cut the workspace must be what it was after one of its
//! operations, not before the last one that was fsynced or published.
//!
//! A cut kills the daemon at the same moment, and the machine boots again: each life has a boot id of its own, in a mount namespace of
//! the test's thread. `HILOOP_POWERCUT_CUTS` sets the number of cuts (default 100), `HILOOP_POWERCUT_SEED` the seed.

mod model;
mod xattr;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use hiloop_env::Env;
use hiloop_powercut::{Flushes, Losses, Options, PowerCut};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use self::model::{Op, Tree, differences, listing};
use crate::rig::{PROGRAM, is_running, pattern};

/// Cuts after which a new node, store and workspace begin: first starts are cut too.
const CUTS_PER_NODE: u64 = 20;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Snapshots of each node whose content is compared, the last ones.
const SNAPSHOTS_READ: usize = 6;
/// Looks for the snapshots in the store.
const SNAPSHOT_LOOKS: u32 = 2000;
/// Looks at a condition before it is given up, and the pause between two: minutes, since only a defect comes to the end of them.
const LOOKS: u32 = 36_000;
/// Looks at a command that the cut may have left hanging.
const LOOKS_AFTER_CUT: u32 = 300;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(5);

/// What the checker objects to.
enum Violation {
    /// An earlier state than what was fsynced or published.
    Lost(String),
    /// The state after none of the operations.
    Invented(String),
    /// The workspace cannot be mounted or read again.
    Refused(String),
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost(why) => write!(f, "promised and lost: {why}"),
            Self::Invented(why) => write!(f, "never was like this: {why}"),
            Self::Refused(why) => write!(f, "cannot be mounted or read: {why}"),
        }
    }
}

/// What happened: the proof that the faults did.
#[derive(Debug, Default)]
struct Tally {
    cuts: u64,
    cuts_in_recovery: u64,
    /// Cuts while the store failed every call.
    cuts_without_store: u64,
    /// Fsyncs and snapshots that were acknowledged.
    promises: u64,
    /// Operations that a cut took, rightly.
    forgotten: u64,
    /// RocksDB's tables at the end.
    tables: u64,
    losses: Losses,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.cuts_in_recovery += other.cuts_in_recovery;
        self.cuts_without_store += other.cuts_without_store;
        self.promises += other.promises;
        self.forgotten += other.forgotten;
        self.tables += other.tables;
        self.losses.add(&other.losses);
    }
}

/// One node with its store, over many lives.
struct Life {
    dir: tempfile::TempDir,
    disk: PowerCut,
    dice: Env,
    daemon: Arc<AtomicI32>,
    boots: u64,
    /// The tree before `log`.
    base: Tree,
    /// Operations since, the last of which may have failed by the cut.
    log: Vec<Op>,
    /// Operations of `log` that must survive.
    floor: usize,
    tally: Tally,
    /// What the last mount answered, and what the last cut took.
    story: String,
    /// Snapshots that were acknowledged, and what they must hold.
    snapshots: Vec<(String, Tree)>,
    snapshots_begun: u64,
    /// Every call to the store fails.
    store_away: bool,
}

impl Life {
    /// Moves the calling thread to a mount namespace of its own, in which the boot id is a file of ours.
    fn new(seed: u64, options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for d in ["disk", "m", "store"] {
            fs::create_dir(dir.path().join(d)).unwrap();
        }
        fs::write(dir.path().join("boot"), "boot-0\n").unwrap();
        // SAFETY: the call touches no memory; the thread shares its file system attributes with nobody afterwards.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0, "{}: needs root", io::Error::last_os_error());
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(Some(&dir.path().join("boot")), BOOT_ID, none, MsFlags::MS_BIND, none).unwrap();
        let disk = PowerCut::mount(&dir.path().join("disk"), options, Env::real()).unwrap();
        let daemon = Arc::new(AtomicI32::new(0));
        let victim = daemon.clone();
        disk.on_cut(move || slay(victim.load(Ordering::SeqCst)));
        Self {
            dir,
            disk,
            dice: Env::simulated(seed).0,
            daemon,
            boots: 0,
            base: Tree::default(),
            log: Vec::new(),
            floor: 0,
            tally: Tally::default(),
            story: String::new(),
            snapshots: Vec::new(),
            snapshots_begun: 0,
            store_away: false,
        }
    }
    fn below(&self, n: u64) -> u64 {
        self.dice.random_u64() % n
    }
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    /// Runs the program; a command that the cut left hanging is ended.
    fn command(&self, args: &[&str]) -> Output {
        let store = format!("file://{}", self.path("store").display());
        let mut c = Command::new(PROGRAM);
        c.arg("--json").args(args).env("HILOOP_STORE", store).env_remove("HILOOP_LOG").stdin(Stdio::null());
        let child = c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        let waiter = std::thread::spawn(move || child.wait_with_output().unwrap());
        let mut looks_after_cut = 0;
        for _ in 0..LOOKS {
            if waiter.is_finished() {
                break;
            }
            looks_after_cut += u32::from(self.disk.is_cut());
            if looks_after_cut > LOOKS_AFTER_CUT {
                self.end_daemon();
                break;
            }
            std::thread::sleep(PAUSE);
        }
        if !waiter.is_finished() && !self.disk.is_cut() {
            slay(pid);
            panic!("{args:?} hangs\n{}", self.daemon_log());
        }
        waiter.join().unwrap()
    }
    fn mount(&self) -> Output {
        let (node, place) = (self.path("disk/node"), self.path("m"));
        let (node, place) = (node.to_str().unwrap(), place.to_str().unwrap());
        let rest = ["--node-name", "n", "--heartbeat-interval", "100ms", "--heartbeat-watch", "600ms", "--cache-floor", "1MiB"];
        let mounted = self.command(&[&["mount", "--workspace", "w", "--cache-dir", node], &rest[..], &[place]].concat());
        if mounted.status.success() {
            let pid = String::from_utf8(mounted.stdout.clone()).unwrap();
            let pid: serde_json::Value = serde_json::from_str(&pid).unwrap();
            self.daemon.store(pid["pid"].as_i64().unwrap() as i32, Ordering::SeqCst);
            if self.disk.is_cut() {
                // The cut came before its victim was known.
                slay(self.daemon.load(Ordering::SeqCst));
            }
        }
        mounted
    }
    fn daemon_log(&self) -> String {
        let log = self.disk.read(Path::new("node/daemon.log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).into_owned();
        log.lines().rev().take(30).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
    }
    /// Ends whatever still runs on the disk, and returns once it is gone.
    fn end_daemon(&self) {
        let holder = self.disk.read(Path::new("node/lock")).and_then(|b| String::from_utf8(b).ok()?.trim().parse().ok());
        for pid in [Some(self.daemon.swap(0, Ordering::SeqCst)), holder].into_iter().flatten().filter(|&pid| is_ours(pid)) {
            slay(pid);
            let gone = (0..LOOKS).any(|_| {
                let gone = !is_running(pid);
                if !gone {
                    std::thread::sleep(PAUSE);
                }
                gone
            });
            assert!(gone, "the daemon does not die");
        }
    }

    /// Takes the store away (a file stands in its place, so that every call fails), or brings it back.
    fn store_goes(&mut self, away: bool) {
        let (store, aside) = (self.path("store"), self.path("store-away"));
        if away && !self.store_away {
            fs::rename(&store, &aside).unwrap();
            fs::write(&store, "away").unwrap();
        } else if self.store_away && !away {
            fs::remove_file(&store).unwrap();
            fs::rename(&aside, &store).unwrap();
        }
        self.store_away = away;
    }

    fn power_cycle(&mut self) {
        self.tally.cuts_without_store += u64::from(self.store_away);
        self.disk.cut(self.dice.random_u64());
        self.end_daemon();
        // What a failed mount left, too.
        while umount2(&self.path("m"), MntFlags::MNT_DETACH).is_ok() {}
        let losses = self.disk.restore();
        self.tally.losses.add(&losses);
        self.story = losses.to_string();
        self.tally.cuts += 1;
        self.boots += 1;
        fs::write(self.path("boot"), format!("boot-{}\n", self.boots)).unwrap();
    }

    /// Until the workspace is mounted; with `cut_again`, power fails once more on the way there.
    fn recover(&mut self, cut_again: bool) -> Result<(), Violation> {
        let mut alarm = cut_again.then(|| self.below(120));
        loop {
            if let Some(after) = alarm.take() {
                self.disk.arm(after, self.dice.random_u64());
            }
            let mounted = self.mount();
            self.disk.disarm();
            if self.store_away && !self.disk.is_cut() {
                // It says so, and nothing is lost by the attempt.
                assert!(!mounted.status.success(), "mounted without a store");
                self.store_goes(false);
            } else if self.disk.is_cut() {
                self.tally.cuts_in_recovery += 1;
                self.power_cycle();
            } else if mounted.status.success() {
                self.story = format!("{}; {}", self.story, String::from_utf8_lossy(&mounted.stdout).trim());
                return Ok(());
            } else {
                let said = String::from_utf8_lossy(&mounted.stderr).into_owned();
                return Err(Violation::Refused(format!("{said}\n{}", self.daemon_log())));
            }
        }
    }

    /// The recovered tree is the model after `k` operations, and none that was promised is missing.
    fn check(&mut self) -> Result<(), Violation> {
        let found = listing(&self.path("m")).map_err(|e| Violation::Refused(format!("{e}\n{}", self.daemon_log())))?;
        let mut states = vec![self.base.clone()];
        for op in &self.log {
            let mut next = states.last().unwrap().clone();
            op.apply(&mut next);
            states.push(next);
        }
        let Some(k) = states.iter().rposition(|s| s.is(&found)) else {
            let near = states.iter().map(|s| differences(s, &found)).enumerate().min_by_key(|(_, d)| d.len()).unwrap();
            return Err(Violation::Invented(format!(
                "floor {}, {} operations; nearest is the state after {}: {:#?}\nthen {:?}",
                self.floor,
                self.log.len(),
                near.0,
                near.1,
                self.log.get(near.0).map(Op::to_string)
            )));
        };
        if k < self.floor {
            let lost: Vec<String> = self.log[k..self.floor].iter().map(Op::to_string).collect();
            return Err(Violation::Lost(format!("state after {k} of {}; {} were promised: {lost:#?}", self.log.len(), self.floor)));
        }
        self.tally.forgotten += (self.log.len() - k) as u64;
        (self.base, self.floor) = (states.swap_remove(k), 0);
        self.log.clear();
        Ok(())
    }

    /// Works until the power fails.
    fn work(&mut self) {
        let mut tree = self.base.clone();
        let away = (self.below(3) == 0).then(|| self.below(30));
        self.disk.arm(self.below(150), self.dice.random_u64());
        for n in 0..20 + self.below(40) {
            if let Some(from) = away {
                self.store_goes((from..from + 20).contains(&n));
            }
            match self.below(20) {
                // The name of a snapshot is looked up in the store.
                0 if !self.store_away => self.snapshot(&tree),
                1..=4 => {
                    let mut paths: Vec<&str> = tree.paths().map(String::as_str).collect();
                    paths.push("");
                    let path = *self.pick(&paths).unwrap();
                    let whole = self.below(2) == 0;
                    match File::open(self.path("m").join(path)).and_then(|f| if whole { f.sync_all() } else { f.sync_data() }) {
                        Ok(()) => {
                            let last = self.log.iter().rposition(|op| op.touches(path));
                            self.promise(last.map_or(0, |i| i + 1));
                        }
                        Err(e) => assert!(self.disk.is_cut(), "fsync: {e}\n{}", self.daemon_log()),
                    }
                }
                _ => {
                    let Some(op) = self.draw(&tree) else { continue };
                    let done = op.run(&self.path("m"));
                    if let Err(e) = &done {
                        assert!(self.disk.is_cut(), "{op}: {e}\n{}", self.daemon_log());
                    }
                    op.apply(&mut tree);
                    // A failed one may have happened.
                    self.log.extend(op.requests());
                }
            }
            if self.disk.is_cut() {
                return;
            }
        }
    }
    /// Cuts a snapshot: durable on the node at once, or in the store.
    fn snapshot(&mut self, tree: &Tree) {
        let (m, name) = (self.path("m"), format!("s{}", self.snapshots_begun));
        self.snapshots_begun += 1;
        let mut args = vec!["snapshot", "--name", &name, m.to_str().unwrap()];
        args.extend((self.below(3) == 0).then_some("--wait"));
        let made = self.command(&args);
        if made.status.success() {
            self.promise(self.log.len());
            self.snapshots.push((name, tree.clone()));
        } else if !self.disk.is_cut() {
            panic!("{}\n{}", String::from_utf8_lossy(&made.stderr), self.daemon_log());
        }
    }
    fn promise(&mut self, upto: usize) {
        self.floor = self.floor.max(upto);
        self.tally.promises += 1;
    }
    fn pick<'a, T>(&self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len().max(1) as u64) as usize)
    }
    /// An operation that is valid on `tree`.
    fn draw(&self, tree: &Tree) -> Option<Op> {
        let is_dir = |p: &&String| tree.node(p).is_some_and(|n| n.bytes.is_none());
        let (folders, files): (Vec<&String>, Vec<&String>) = tree.paths().partition(is_dir);
        let mut dirs: Vec<String> = folders.iter().map(|p| format!("{p}/")).collect();
        dirs.push(String::new());
        let name = |kind: &str| format!("{}{kind}{}", self.pick(&dirs).map_or("", |d| d), self.below(12));
        let data = |max: u64| pattern(1 + self.below(max) as usize, self.dice.random_u64() as u8);
        let file = || self.pick(&files).map(|f| (*f).clone());
        let any = || if self.below(4) == 0 { self.pick(&folders).map(|f| (*f).clone()) } else { file() };
        Some(match self.below(20) {
            0 if dirs.len() < 6 => Some(name("d")).filter(|p| !tree.contains(p)).map(Op::Mkdir)?,
            // Often over a file that exists.
            1 | 2 if files.len() > 3 => {
                let (from, to) = (file()?, if self.below(2) == 0 { file()? } else { name("f") });
                (from != to && !tree.same_inode(&from, &to)).then_some(Op::Rename(from, to))?
            }
            3 if files.len() > 6 => Op::Unlink(file()?),
            4 => Op::Truncate(file()?, self.below(30_000)),
            5..=8 if !files.is_empty() => Op::Write(file()?, self.below(20_000), data(3_000)),
            9 if !files.is_empty() => Op::Write(file()?, self.below(100_000), data(200_000)),
            10 | 11 => Some(name("f")).filter(|p| !tree.contains(p)).map(|to| Some(Op::Link(file()?, to)))??,
            12 => Op::Mode(any()?, 0o600 | self.below(0o200) as u32),
            // A directory's own time moves with each name in it.
            13 => Op::Times(file()?, 1_000_000_000 + self.below(1_000_000_000), self.below(1_000_000_000) as u32),
            14 | 15 => Op::SetXattr(any()?, format!("user.{}", self.below(3)), data(400)),
            16 => {
                let path = any()?;
                let name = tree.node(&path)?.xattrs.keys().next()?.clone();
                Op::RemoveXattr(path, name)
            }
            _ => Some(name("f")).filter(|p| !tree.contains(p)).map(Op::Create)?,
        })
    }

    /// One life: mount, check, work, lose power.
    fn live(&mut self) -> Result<(), Violation> {
        let cut_again = self.below(3) == 0;
        // Half of the attempts to start again find the store still away.
        if self.below(2) == 0 {
            self.store_goes(false);
        }
        self.recover(cut_again)?;
        self.check()?;
        self.work();
        self.power_cycle();
        Ok(())
    }
    /// The last recovery; then the store holds each snapshot that was acknowledged, and is sound.
    fn finish(&mut self) -> Result<(), Violation> {
        self.store_goes(false);
        self.recover(false)?;
        self.check()?;
        let tables = |e: io::Result<fs::DirEntry>| e.is_ok_and(|e| e.path().extension().is_some_and(|x| x == "sst"));
        self.tally.tables = fs::read_dir(self.path("disk/node/index")).unwrap().map(tables).filter(|t| *t).count() as u64;
        let run = |args: &[&str]| {
            let out = self.command(args);
            let said = String::from_utf8_lossy(&[out.stdout.clone(), out.stderr.clone()].concat()).into_owned();
            if out.status.success() { Ok(()) } else { Err(Violation::Lost(format!("{args:?}: {said}"))) }
        };
        run(&["flush", self.path("m").to_str().unwrap()])?;
        // The objects of cuts that a restart found behind a published head come in the background.
        let missing = || {
            let listed = self.command(&["list", "snapshots"]);
            let rows: Vec<serde_json::Value> =
                listed.stdout.split(|b| *b == b'\n').filter_map(|l| serde_json::from_slice(l).ok()).collect();
            self.snapshots
                .iter()
                .map(|(name, _)| name)
                .filter(|n| rows.iter().all(|r| r["name"] != n.as_str()))
                .cloned()
                .collect::<Vec<_>>()
        };
        let complete = (0..SNAPSHOT_LOOKS).any(|_| {
            let complete = missing().is_empty();
            if !complete {
                std::thread::sleep(PAUSE);
            }
            complete
        });
        if !complete {
            return Err(Violation::Lost(format!("acknowledged snapshots are not in the store: {:?}", missing())));
        }
        for (name, tree) in self.snapshots.iter().rev().take(SNAPSHOTS_READ) {
            let place = self.path(name);
            run(&["export", &format!("snapshot:{name}"), place.to_str().unwrap()])?;
            let found = listing(&place).map_err(|e| Violation::Refused(e.to_string()))?;
            if !tree.is(&found) {
                return Err(Violation::Invented(format!("snapshot {name}: {:#?}", differences(tree, &found))));
            }
        }
        run(&["fsck", "--deep"])
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.disk.cut(0);
        self.end_daemon();
        let _ = umount2(&self.path("m"), MntFlags::MNT_DETACH);
        let _ = umount2(BOOT_ID, MntFlags::MNT_DETACH);
    }
}

fn slay(pid: i32) {
    if pid > 1 {
        // Gone already is fine.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// A number that stands in a file may belong to somebody else by now.
fn is_ours(pid: i32) -> bool {
    pid > 1 && fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == Path::new(PROGRAM))
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |v| v.parse().unwrap())
}

#[test]
fn after_a_power_cut_the_workspace_is_a_prefix_that_holds_what_was_fsynced() {
    let (cuts, seed) = (number("HILOOP_POWERCUT_CUTS", 100), number("HILOOP_POWERCUT_SEED", 1));
    let (mut tally, mut node) = (Tally::default(), 0);
    while tally.cuts < cuts {
        let flushes = if node % 2 == 0 { Flushes::Strict } else { Flushes::Ext4 };
        let mut life = Life::new(seed.wrapping_mul(1000) + node, Options { flushes, ..Options::default() });
        let told = |life: &Life, result: Result<(), Violation>| {
            if let Err(v) = result {
                panic!("seed {seed}, node {node} ({flushes:?}), cut {}: {v}\n{}\n{}", life.tally.cuts, life.story, life.daemon_log());
            }
        };
        while life.tally.cuts < CUTS_PER_NODE.min(cuts - tally.cuts) {
            let lived = life.live();
            told(&life, lived);
        }
        let finished = life.finish();
        told(&life, finished);
        tally.add(&life.tally);
        node += 1;
    }
    eprintln!("{tally:?}");
    let Tally { cuts: done, cuts_in_recovery, cuts_without_store, promises, tables, losses, .. } = tally;
    if done >= CUTS_PER_NODE {
        // The faults happened, and to all that should survive them.
        assert!(cuts_in_recovery >= done / 20 && promises >= done / 2 && tables > 0, "{cuts_in_recovery} {promises} {tables}");
        assert!(cuts_without_store > 0, "no cut met a store that was away");
        assert!(losses.names_lost > 0 && losses.names_kept > 0 && losses.writes_torn > 0, "{losses}");
        assert!(losses.sectors_lost > done && losses.sectors_kept > done, "{losses}");
    }
}

/// The guard has been seen to fail: a disk that lies about the flushes of the journal, or of staging, is found out.
#[test]
fn the_checker_sees_a_disk_that_lies_about_flushes() {
    for (seed, liar) in [(1, "journal"), (2, "staging")] {
        let options = Options { flushes: Flushes::Strict, lie_below: Some(liar.into()) };
        let mut life = Life::new(seed, options);
        match (0..60).find_map(|_| life.live().err()) {
            Some(found) => eprintln!("a disk that lies about {liar}: {found}"),
            None => panic!("{} cuts on a disk that lies about {liar}, and nothing was missed", life.tally.cuts),
        }
    }
}
