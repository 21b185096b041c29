//! The daemon dies: every accepted byte is there after a remount.

use std::fs;

use crate::rig::{Rig, listing, pattern, pid, signal};

#[test]
fn after_kill_9_a_remount_has_every_accepted_byte() {
    let rig = Rig::new();
    rig.plant();
    rig.publish("b1");
    let mounted = rig.mount("a", "m", "--workspace demo --base b1").json();
    let m = rig.path("m");
    fs::create_dir(m.join("work")).unwrap();
    for i in 0..300 {
        fs::write(m.join(format!("work/{i}")), pattern(i * 37, i as u8)).unwrap();
    }
    fs::write(m.join("big"), pattern(3 << 20, 9)).unwrap();
    fs::rename(m.join("work/7"), m.join("work/seven")).unwrap();
    fs::remove_file(m.join("file-01")).unwrap();
    let before = listing(&m, true);
    rig.kill(pid(&mounted));
    // The descriptor is closed while the process ends: a request that is under way at that moment is aborted (ECONNABORTED).
    rig.until("the mount is dead", || fs::read_dir(&m).unwrap_err().raw_os_error() == Some(libc::ENOTCONN));

    rig.sh("status {m}").fails(1, &["no daemon serves it", "hint: mount it again"]);
    let again = rig.mount("a", "m", "--workspace demo").json();
    assert_ne!(pid(&again), pid(&mounted));
    assert_eq!(again["epoch"], mounted["epoch"], "a restart keeps its session");
    assert_eq!(listing(&m, true), before);
    fs::write(m.join("goes-on"), "yes").unwrap();
    let left = rig.json("unmount {m}").json();
    assert_eq!(left["left_bytes"], 0);
    rig.mount("b", "n", "--workspace demo").ok();
    assert_eq!(fs::read_to_string(rig.path("n/goes-on")).unwrap(), "yes");
    assert_eq!(listing(&rig.path("n"), true).len(), before.len() + 1);
}

#[test]
fn unmount_clears_a_dead_mount_and_says_that_nothing_was_published() {
    let rig = Rig::new();
    let mounted = rig.mount("a", "m", "--workspace demo").json();
    rig.kill(pid(&mounted));
    rig.sh("unmount {m}").fails(1, &["cleared away", "--cache-dir"]);
    assert!(fs::read_dir(rig.path("m")).unwrap().next().is_none(), "the place is free");
}

#[test]
fn sigterm_publishes_detaches_and_gives_the_heads_back() {
    let rig = Rig::new();
    let one = rig.mount("a", "m", "--workspace one").json();
    rig.mount("a", "n", "--workspace two").ok();
    fs::write(rig.path("m/x"), pattern(1 << 20, 1)).unwrap();
    fs::write(rig.path("n/y"), "y").unwrap();
    signal(pid(&one), nix::sys::signal::Signal::SIGTERM);
    rig.until("the daemon is gone", || !crate::rig::is_running(pid(&one)));
    for p in ["m", "n"] {
        assert!(fs::read_dir(rig.path(p)).unwrap().next().is_none(), "{p} is detached");
    }
    let next = rig.mount("b", "m", "--workspace one").json();
    assert_eq!(next["lost_window"]["state"], "none");
    assert_eq!(fs::read(rig.path("m/x")).unwrap(), pattern(1 << 20, 1));
}
