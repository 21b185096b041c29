//! What a cut holds of files that are mapped, and writers that wait beside one that does not.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::sys::wait::waitpid;
use nix::unistd::ForkResult;

use crate::rig::{Rig, is_running, pattern, pid};

const LEN: usize = 256 << 10;
const PAGE: usize = 4096;

/// A shared mapping of a new file of [`LEN`] zeros.
struct Mapped {
    at: *mut libc::c_void,
}

impl Mapped {
    fn new(path: &Path) -> Self {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
        file.write_all_at(&vec![0; LEN], 0).unwrap();
        // SAFETY: a fresh shared mapping of a file that is as long as the mapping; checked below.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self { at }
    }
    /// Has a child change the first page. It may wait in its page fault, where nobody can start threads or processes beside it: so it is
    /// no thread of ours. Returns once the page is changed, or is being written back.
    fn store_elsewhere(&self, rig: &Rig, byte: u8) -> Child {
        // SAFETY: the child makes no call but the last, and touches nothing but the mapping, which is longer than a page.
        let child = match unsafe { nix::unistd::fork() }.unwrap() {
            ForkResult::Parent { child } => Child(child),
            // SAFETY: as above.
            ForkResult::Child => unsafe {
                std::ptr::write_bytes(self.at.cast::<u8>(), byte, PAGE);
                libc::_exit(0)
            },
        };
        rig.until("the page is changed", || child.has_ended() || waiting(rig, "{m}") > 1);
        child
    }
    /// Changes all of it, without a call that the file system could see.
    fn store(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), LEN);
        // SAFETY: the mapping is this long, and nothing else refers into it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.cast(), LEN) };
    }
}

struct Child(nix::unistd::Pid);

impl Child {
    fn has_ended(&self) -> bool {
        !is_running(self.0.as_raw())
    }
    fn end(self) {
        waitpid(self.0, None).unwrap();
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        unsafe { libc::munmap(self.at, LEN) };
    }
}

fn exported(rig: &Rig, snapshot: &str, file: &str) -> Vec<u8> {
    rig.sh(&format!("export snapshot:{snapshot} {{out-{snapshot}}}")).ok();
    fs::read(rig.path(&format!("out-{snapshot}/{file}"))).unwrap()
}

/// Takes away where the store has its packs: it can be read and its heads move, but no content can be put.
fn packs_away(rig: &Rig) {
    fs::rename(rig.path("store/packs"), rig.path("packs-away")).unwrap();
    fs::write(rig.path("store/packs"), "away").unwrap();
}

fn packs_back(rig: &Rig) {
    fs::remove_file(rig.path("store/packs")).unwrap();
    fs::rename(rig.path("packs-away"), rig.path("store/packs")).unwrap();
}

/// Writes until there is no room for another page, and waits then.
fn fill(rig: &Rig, prefix: &'static str) -> std::thread::JoinHandle<std::io::Result<()>> {
    let m = rig.path("m");
    let writer = std::thread::spawn(move || (0..400).try_for_each(|i| fs::write(m.join(format!("{prefix}{i}")), [7; PAGE])));
    rig.until("the writer waits", || waiting(rig, "{m}") > 0);
    writer
}

fn waiting(rig: &Rig, target: &str) -> u64 {
    rig.status(target)["fuse"]["waiting_now"].as_u64().unwrap()
}

#[test]
fn a_cut_holds_what_was_stored_through_a_mapping() {
    let rig = Rig::new();
    rig.mount("a", "m", "--workspace w").ok();
    let mapped = Mapped::new(&rig.path("m/f"));
    for (i, name) in ["s0", "s1", "s2"].iter().enumerate() {
        let now = pattern(LEN, i as u8 + 1);
        mapped.store(&now);
        let cut = rig.json(&format!("snapshot {{m}} --name {name} --wait")).json();
        assert!(cut.get("unsynced").is_none(), "{cut}");
        assert!(exported(&rig, name, "f") == now, "{name} is not what the mapping held");
    }
    let now = pattern(LEN, 9);
    mapped.store(&now);
    let flushed = rig.json("flush {m}").json();
    assert!(flushed.get("unsynced").is_none(), "{flushed}");
    rig.sh("export workspace:w {out}").ok();
    assert!(fs::read(rig.path("out/f")).unwrap() == now, "a flush publishes it, too");
}

/// The kernel's wait for pages that are written back cannot be ended: it must not be the daemon's.
#[test]
fn a_write_back_that_does_not_end_is_named_and_holds_up_nobody() {
    let rig = Rig::new();
    let daemon = pid(&rig.mount("a", "m", "--workspace w --backlog-limit 1MiB").json());
    let mapped = Mapped::new(&rig.path("m/f"));
    rig.sh("flush {m}").ok();
    packs_away(&rig);
    let writer = fill(&rig, "w");
    let child = mapped.store_elsewhere(&rig, 3);
    let cut = rig.json("snapshot {m} --name s0").json();
    assert!(cut["unsynced"].as_str().is_some_and(|w| w.contains("did not end within 2s")) && cut["durability"] == "local", "{cut}");
    let next = rig.json("snapshot {m} --name s1").json();
    assert!(next["unsynced"].as_str().is_some_and(|w| w.contains("earlier write-back")), "one helper a mount: {next}");
    assert_eq!(rig.status("{m}")["standing"], "live", "the daemon answers");
    packs_back(&rig);
    writer.join().unwrap().unwrap();
    child.end();
    rig.until("the helper has ended", || rig.json("flush {m}").json().get("unsynced").is_none());
    rig.json("snapshot {m} --name s2 --wait").json();
    assert_eq!(exported(&rig, "s2", "f")[..PAGE], [3; PAGE]);

    // Nor does it keep the daemon from ending.
    packs_away(&rig);
    let writer = fill(&rig, "x");
    let child = mapped.store_elsewhere(&rig, 4);
    let cut = rig.json("snapshot {m} --name s3").json();
    assert!(cut["unsynced"].is_string(), "{cut}");
    rig.kill(daemon);
    assert!(writer.join().unwrap().is_err());
    child.end();
    packs_back(&rig);
    drop(mapped);
    rig.sh("unmount {m}");
    rig.mount("a", "m", "--workspace w").ok();
    assert_eq!(fs::read(rig.path("m/f")).unwrap()[..PAGE], [3; PAGE], "what was accepted");
}

/// All workspaces of a node but one wait at their bound.
#[test]
fn a_neighbour_of_blocked_writers_goes_on() {
    const BLOCKED: usize = 6;
    let rig = Rig::new();
    rig.mount("a", "free", "--workspace free").ok();
    for i in 0..BLOCKED {
        rig.mount("a", &format!("m{i}"), &format!("--workspace w{i} --backlog-limit 1MiB")).ok();
        rig.sh(&format!("flush {{m{i}}}")).ok();
    }
    let free = rig.path("free");
    fs::write(free.join("there"), "x").unwrap();
    rig.sh("flush {free}").ok();
    packs_away(&rig);
    let writers: Vec<_> = (0..BLOCKED)
        .map(|i| {
            let m = rig.path(&format!("m{i}"));
            std::thread::spawn(move || (0..40).try_for_each(|f| fs::write(m.join(format!("f{f}")), pattern(100_000, f))))
        })
        .collect();
    for i in 0..BLOCKED {
        rig.until("its writer waits", || waiting(&rig, &format!("{{m{i}}}")) > 0);
    }
    // Many more than a pool of threads or a queue of any of them has room for.
    for i in 0..500 {
        fs::write(free.join(format!("small-{i}")), "x").unwrap();
        assert_eq!(fs::metadata(free.join("there")).unwrap().len(), 1);
    }
    File::open(free.join("small-0")).unwrap().sync_all().unwrap();
    let doctor = rig.json("ctl --socket {nobody.sock} doctor");
    assert_eq!(doctor.code, 1);
    for i in 0..BLOCKED {
        assert!(waiting(&rig, &format!("{{m{i}}}")) > 0, "it still waits");
        let said = format!("m{i}: 1 changes wait at the backlog bound");
        assert!(doctor.stdout.contains(&said), "{said}: {}", doctor.stdout);
    }
    assert!(doctor.stdout.contains("no daemon answers on the control socket"));
    packs_back(&rig);
    for w in writers {
        w.join().unwrap().unwrap();
    }
}
