//! One daemon per cache directory: how it starts, is joined, and ends.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use crate::rig::{Rig, is_running, pid, signal};

#[test]
fn mounts_that_race_for_one_cache_directory_end_with_one_daemon() {
    let rig = Rig::new();
    let pids: BTreeSet<i32> = std::thread::scope(|s| {
        let start = |i: usize| {
            let rig = &rig;
            s.spawn(move || pid(&rig.mount("a", &format!("m{i}"), &format!("--workspace w{i}")).json()))
        };
        let racers: Vec<_> = (0..4).map(start).collect();
        racers.into_iter().map(|r| r.join().unwrap()).collect()
    });
    assert_eq!(pids.len(), 1, "{pids:?}");
    let status = rig.status("--cache-dir {a}");
    assert_eq!(status["workspaces"].as_array().unwrap().len(), 4, "{status}");
    let command = fs::read(format!("/proc/{}/cmdline", pid(&status))).unwrap();
    let dir = rig.path("a").canonicalize().unwrap().display().to_string();
    assert!(String::from_utf8_lossy(&command).contains(&dir), "the command line holds the cache directory");
    let mode = |p: &str| fs::metadata(rig.path(p)).unwrap().mode() & 0o777;
    assert_eq!((mode("a"), mode("a/daemon.sock")), (0o700, 0o600));
}

#[test]
fn the_daemon_ends_after_the_last_workspace_and_the_next_mount_starts_another() {
    let rig = Rig::new();
    let first = rig.mount("a", "m", "--workspace w").json();
    rig.sh("unmount w --cache-dir {a}").ok();
    rig.until("the daemon ends by itself", || !is_running(pid(&first)));
    assert!(!rig.path("a/daemon.sock").exists());
    let second = rig.mount("a", "m", "--workspace w").json();
    assert_ne!(pid(&first), pid(&second));
    assert_eq!(second["lost_window"]["state"], "none");
}

#[test]
fn a_mount_that_is_taken_away_from_outside_is_let_go() {
    let rig = Rig::new();
    rig.mount("a", "m", "--workspace w").ok();
    fs::write(rig.path("m/x"), "x").unwrap();
    nix::mount::umount(&rig.path("m")).unwrap();
    rig.until("the head is given back", || rig.json("list workspaces").rows().iter().all(|w| w["open"] == false));
    let again = rig.mount("b", "n", "--workspace w").json();
    assert_eq!(again["lost_window"]["state"], "none");
    assert_eq!(fs::read_to_string(rig.path("n/x")).unwrap(), "x");
}

#[test]
fn a_busy_mount_is_detached_all_the_same() {
    let rig = Rig::new();
    rig.mount("a", "m", "--workspace w").ok();
    fs::write(rig.path("m/x"), "content").unwrap();
    let mut open = fs::File::open(rig.path("m/x")).unwrap();
    let left = rig.json("unmount {m}").json();
    assert_eq!((&left["busy"], &left["left_bytes"]), (&true.into(), &0.into()));
    assert!(fs::read_dir(rig.path("m")).unwrap().next().is_none());
    let mut text = String::new();
    let served = open.read_to_string(&mut text);
    assert!(served.is_err() || text == "content", "cut off, or from the page cache; never something else: {text:?}");
}

#[test]
fn a_foreground_mount_is_unmounted_by_a_signal() {
    let rig = Rig::new();
    rig.place("m");
    let mut child = std::process::Command::new(crate::rig::PROGRAM)
        .args(["--json", "mount", "--foreground", "--workspace", "w", "--store", &rig.store(), "--cache-dir"])
        .arg(rig.path("a"))
        .arg(rig.path("m"))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mounted = || hiloop_fusefs::fuse::find_mount(&rig.path("m")).unwrap().is_some();
    rig.until("it is mounted", mounted);
    rig.until("the daemon answers", || rig.sh("status {m}").code == 0);
    fs::write(rig.path("m/x"), "x").unwrap();
    assert!(child.try_wait().unwrap().is_none(), "it stays");
    signal(child.id() as i32, nix::sys::signal::Signal::SIGINT);
    assert!(child.wait().unwrap().success());
    assert!(!mounted());
    assert_eq!(rig.json("list workspaces").rows()[0]["open"], false);
}

#[test]
fn a_daemon_started_by_hand_stays() {
    let rig = Rig::new();
    let hello = rig.json("daemon --cache-dir {a} --node-name by-hand").json();
    let mounted = rig.mount("a", "m", "--workspace w").json();
    assert_eq!(pid(&hello), pid(&mounted));
    let same = rig.json("daemon --cache-dir {a}").json();
    assert_eq!(pid(&hello), pid(&same), "a second start finds the first");
    let status = rig.status("w --cache-dir {a}");
    assert_eq!(status["node"], "by-hand");
    rig.sh("unmount {m}").ok();
    assert!(is_running(pid(&hello)));
    signal(pid(&hello), nix::sys::signal::Signal::SIGTERM);
    rig.until("SIGTERM ends it", || !is_running(pid(&hello)));
}
