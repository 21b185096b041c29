//! A place for one test: a store, cache directories, mount points; ends what it started.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_sandbox-workspace");
/// A command that takes longer hangs, also on a machine with much else to do.
const PATIENCE: &str = "300";
/// Looks at a condition before a test gives up, and the pause between two: minutes, since only a defect comes to the end of them.
const LOOKS: u32 = 18_000;
const PAUSE: Duration = Duration::from_millis(10);

pub struct Rig {
    pub dir: tempfile::TempDir,
    daemons: Mutex<Vec<i32>>,
}

/// What a command did.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// It must have worked; its one JSON object.
    #[track_caller]
    pub fn json(&self) -> Value {
        self.ok();
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }
    /// It must have worked; its JSON rows.
    #[track_caller]
    pub fn rows(&self) -> Vec<Value> {
        self.ok();
        self.stdout.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
    }
    #[track_caller]
    pub fn ok(&self) -> &Self {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }
    /// It must have failed with this exit code, and said all of these words.
    #[track_caller]
    pub fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        for w in words {
            assert!(self.stderr.contains(w), "{w:?} is missing in: {}", self.stderr);
        }
    }
}

impl Rig {
    pub fn new() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "the end-to-end tests mount: run them as root");
        let rig = Self { dir: tempfile::tempdir().unwrap(), daemons: Mutex::default() };
        for d in ["store", "tree"] {
            fs::create_dir(rig.path(d)).unwrap();
        }
        rig
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    pub fn store(&self) -> String {
        format!("file://{}", self.path("store").display())
    }
    /// An empty directory, or what is mounted there: a dead mount cannot be asked.
    pub fn place(&self, name: &str) -> PathBuf {
        let p = self.path(name);
        if hiloop_fusefs::fuse::find_mount(&p).unwrap().is_none() {
            fs::create_dir_all(&p).unwrap();
        }
        p
    }

    /// Takes the store away: a file stands in its place, so that every call fails.
    pub fn store_away(&self) {
        fs::rename(self.path("store"), self.path("store-away")).unwrap();
        fs::write(self.path("store"), "away").unwrap();
    }
    /// Brings it back.
    pub fn store_back(&self) {
        fs::remove_file(self.path("store")).unwrap();
        fs::rename(self.path("store-away"), self.path("store")).unwrap();
    }

    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut c = Command::new("timeout");
        c.arg(PATIENCE).arg(PROGRAM).args(args).env("HILOOP_STORE", self.store()).env_remove("HILOOP_LOG").stdin(Stdio::null());
        c
    }
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        let out = self.command(args).output().unwrap();
        let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
        Ran { code: out.status.code().unwrap_or(-1), stdout: text(out.stdout), stderr: text(out.stderr) }
    }
    /// A copy of the program that every user may run: the build directory may be closed to others.
    pub fn program_for_all(&self) -> PathBuf {
        let copy = self.path("sandbox-workspace");
        if !copy.exists() {
            fs::copy(PROGRAM, &copy).unwrap();
        }
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        copy
    }
    /// Words of a command line; `{name}` stands for a path of the rig.
    pub fn sh(&self, line: &str) -> Ran {
        self.run(line.split_whitespace().map(|w| self.expand(w)))
    }
    pub fn json(&self, line: &str) -> Ran {
        self.sh(&format!("--json {line}"))
    }
    fn expand(&self, word: &str) -> String {
        match (word.find('{'), word.find('}')) {
            (Some(a), Some(b)) => format!("{}{}{}", &word[..a], self.path(&word[a + 1..b]).display(), &word[b + 1..]),
            _ => word.to_owned(),
        }
    }

    /// Publishes the tree of [`Self::plant`].
    pub fn publish(&self, id: &str) -> Value {
        self.json(&format!("publish-base --build-id {id} {{tree}}")).json()
    }

    /// Mounts with quick heartbeats and remembers the daemon. A writer elsewhere is watched shortly: a test in which it lives, and is
    /// to be seen, says how long.
    pub fn mount(&self, cache: &str, place: &str, options: &str) -> Ran {
        self.place(place);
        let node = cache.replace('/', "-");
        let watch = if options.contains("--heartbeat-watch") { "" } else { "--heartbeat-watch 600ms" };
        let ran = self.json(&format!(
            "mount --cache-dir {{{cache}}} --node-name node-{node} --heartbeat-interval 100ms {watch} {options} {{{place}}}"
        ));
        self.remember_daemon(&ran.stdout);
        ran
    }
    /// The daemon that a mount's output names is ended with the rig.
    pub fn remember_daemon(&self, mounted: &str) {
        let pid = serde_json::from_str::<Value>(mounted).ok().and_then(|v| v["pid"].as_i64());
        self.daemons.lock().unwrap().extend(pid.map(|p| p as i32));
    }
    pub fn status(&self, target: &str) -> Value {
        self.json(&format!("status {target}")).json()
    }

    /// Kills a daemon as the kernel would, and returns once it is gone.
    pub fn kill(&self, pid: i32) {
        signal(pid, nix::sys::signal::Signal::SIGKILL);
        self.until("the daemon is gone", || !is_running(pid));
    }
    #[track_caller]
    pub fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        for _ in 0..LOOKS {
            if holds() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        panic!("never came true: {what}");
    }

    /// A small tree with everything that a base can hold.
    pub fn plant(&self) {
        let t = self.path("tree");
        fs::create_dir_all(t.join("etc/deep/er")).unwrap();
        fs::write(t.join("etc/hosts"), "127.0.0.1 localhost\n").unwrap();
        fs::write(t.join("etc/deep/er/data"), pattern(300_000, 7)).unwrap();
        fs::write(t.join("run.sh"), "#!/bin/sh\necho ok\n").unwrap();
        fs::set_permissions(t.join("run.sh"), fs::Permissions::from_mode(0o4755)).unwrap();
        fs::hard_link(t.join("run.sh"), t.join("etc/run-too")).unwrap();
        std::os::unix::fs::symlink("etc/hosts", t.join("link")).unwrap();
        for i in 0..50 {
            fs::write(t.join(format!("file-{i:02}")), pattern(100 * i, i as u8)).unwrap();
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for m in hiloop_fusefs::fuse::mounts().unwrap_or_default() {
            if m.is_ours() && m.mountpoint.starts_with(self.dir.path()) {
                let _ = hiloop_fusefs::fuse::detach(&m.mountpoint);
            }
        }
        for pid in self.daemons.lock().unwrap().iter() {
            if is_running(*pid) {
                signal(*pid, nix::sys::signal::Signal::SIGKILL);
            }
        }
        if std::thread::panicking() {
            for log in ["a", "b", "disk/node"].map(|c| self.path(c).join("daemon.log")) {
                if let Ok(text) = fs::read_to_string(&log) {
                    eprintln!("--- {}\n{text}", log.display());
                }
            }
        }
    }
}

pub fn signal(pid: i32, signal: nix::sys::signal::Signal) {
    // Gone already is fine.
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
}

/// True while it runs; a zombie does not.
pub fn is_running(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !stat.rsplit(')').next().is_some_and(|s| s.trim_start().starts_with('Z'))
}

pub fn pid(v: &Value) -> i32 {
    v["pid"].as_i64().unwrap() as i32
}

/// Bytes that repeat late and differ by `seed`.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let mut x = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect()
}

/// Everything below `root` that a user can see, by path.
pub fn listing(root: &Path, with_inodes: bool) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let m = fs::symlink_metadata(&path).unwrap();
            let content = if m.is_file() {
                format!("{:x?}", digest(&fs::read(&path).unwrap()))
            } else if m.is_symlink() {
                fs::read_link(&path).unwrap().display().to_string()
            } else {
                String::new()
            };
            assert!(!m.file_type().is_block_device(), "no test makes one");
            let ino = if with_inodes { m.ino() } else { 0 };
            let times = (m.mtime(), m.mtime_nsec());
            let line =
                format!("{:o} {}:{} links {} size {} mtime {times:?} ino {ino} {content}", m.mode(), m.uid(), m.gid(), m.nlink(), m.len());
            out.insert(path.strip_prefix(root).unwrap().display().to_string(), line);
            if m.is_dir() {
                open.push(path);
            }
        }
    }
    out
}

fn digest(bytes: &[u8]) -> (usize, u64) {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
    (bytes.len(), hash)
}
