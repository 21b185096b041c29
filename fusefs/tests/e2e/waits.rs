//! Callers that wait: they can be killed at once, and other signals do not reach what waits.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;

use crate::rig::{Rig, signal};

fn gauge(rig: &Rig, name: &str) -> u64 {
    rig.status("{m}")["fuse"][name].as_u64().unwrap()
}

/// A workspace whose store is away and whose backlog is full, and a shell that waits for room.
fn blocked_writer(script: &str) -> (Rig, Child) {
    let rig = Rig::new();
    rig.mount("a", "m", "--workspace w --backlog-limit 8MiB").ok();
    rig.store_away();
    let child = Command::new("sh").args(["-c", script]).current_dir(rig.path("m")).stderr(Stdio::piped()).spawn().unwrap();
    rig.until("a write waits for room", || gauge(&rig, "waiting_now") == 1);
    (rig, child)
}

#[test]
fn a_writer_that_waits_for_room_can_be_killed() {
    let (rig, mut child) = blocked_writer("exec dd if=/dev/zero of=f bs=64k 2>/dev/null");
    signal(child.id() as i32, Signal::SIGKILL);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    let waits = gauge(&rig, "waiting_now");
    assert_eq!((waits, gauge(&rig, "interrupted")), (0, 1), "it is dropped, and what it wanted to write with it");
    let written = fs::metadata(rig.path("m/f")).unwrap().len();
    rig.store_back();
    rig.sh("flush {m}").ok();
    assert_eq!(fs::metadata(rig.path("m/f")).unwrap().len(), written, "it is not done later either");
    fs::write(rig.path("m/g"), "goes on").unwrap();
}

/// A signal that a program handles is no error of a file: no disk says EINTR.
#[test]
fn a_signal_that_does_not_kill_leaves_a_waiting_write_alone() {
    // The shell itself writes: a child of it would be another process.
    let write = "trap 'echo caught >../caught' USR1; i=0; while [ $i -lt 200 ]; do printf %65536s x || exit 1; i=$((i+1)); done >f";
    let (rig, child) = blocked_writer(write);
    signal(child.id() as i32, Signal::SIGUSR1);
    rig.until("the signal is there", || pending_or_caught(&rig, child.id()));
    rig.store_back();
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), String::from_utf8(out.stderr).unwrap()), (Some(0), String::new()));
    assert_eq!(fs::metadata(rig.path("m/f")).unwrap().len(), 200 << 16);
    assert!(rig.path("caught").exists(), "it was delivered afterwards");
    assert_eq!(gauge(&rig, "interrupted"), 0);
}

#[test]
fn a_kill_after_another_signal_is_heard() {
    let (rig, mut child) = blocked_writer("trap : USR1; while :; do printf %65536s x || exit 1; done >f");
    signal(child.id() as i32, Signal::SIGUSR1);
    rig.until("the signal is there", || pending_or_caught(&rig, child.id()));
    signal(child.id() as i32, Signal::SIGKILL);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert_eq!(gauge(&rig, "interrupted"), 1);
}

/// True once SIGUSR1 waits for the process, or has reached it.
fn pending_or_caught(rig: &Rig, pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).and_then(|m| u64::from_str_radix(m.trim(), 16).ok());
    let bit = 1 << (libc::SIGUSR1 - 1);
    rig.path("caught").exists() || ["SigPnd:", "ShdPnd:"].iter().filter_map(|n| mask(n)).any(|m| m & bit != 0)
}

#[test]
fn a_reader_that_waits_for_the_store_can_be_killed() {
    let rig = Rig::new();
    rig.plant();
    rig.publish("b1");
    rig.mount("a", "m", "--workspace w --base b1").ok();
    rig.store_away();
    let mut child = Command::new("cat").arg(rig.path("m/etc/deep/er/data")).stdout(Stdio::null()).spawn().unwrap();
    rig.until("a read waits for the store", || gauge(&rig, "parked_now") > 0);
    signal(child.id() as i32, Signal::SIGKILL);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    rig.store_back();
    assert_eq!(fs::read(rig.path("m/etc/deep/er/data")).unwrap(), fs::read(rig.path("tree/etc/deep/er/data")).unwrap());
}

#[test]
fn an_fsync_that_waits_for_the_store_can_be_killed() {
    let rig = Rig::new();
    rig.mount("a", "m", "--workspace w --durability replicated").ok();
    rig.store_away();
    let mut child = Command::new("dd")
        .arg(format!("of={}", rig.path("m/f").display()))
        .args(["if=/dev/zero", "bs=4k", "count=1", "conv=fsync"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    rig.until("an fsync has come", || rig.status("{m}")["fuse"]["requests"]["fsync"] == 1);
    signal(child.id() as i32, Signal::SIGKILL);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert_eq!(gauge(&rig, "interrupted"), 1);
    rig.store_back();
    fs::File::open(rig.path("m/f")).unwrap().sync_all().unwrap();
}
