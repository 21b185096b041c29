//! One daemon per cache directory: how it starts, is joined, and ends.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use crate::rig::{Rig, is_running, pattern, pid, signal};

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

#[test]
fn an_unmount_without_a_store_is_bounded_and_the_rest_is_published_later() {
    let rig = Rig::new();
    let mounted = rig.mount("a", "m", "--workspace w").json();
    fs::write(rig.path("m/before"), "b").unwrap();
    rig.sh("flush {m}").ok();
    rig.store_away();
    fs::write(rig.path("m/after"), pattern(1 << 20, 5)).unwrap();
    let ran = rig.json("unmount --timeout 500ms {m}");
    assert_eq!(ran.code, 1, "{} {}", ran.stdout, ran.stderr);
    let left: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(left["left_bytes"].as_u64() >= Some(1 << 20) && left["released"] == false, "{left}");
    assert!(fs::read_dir(rig.path("m")).unwrap().next().is_none(), "it is detached all the same");
    assert!(is_running(pid(&mounted)), "the daemon stays for the rest");
    rig.store_back();
    rig.until("the rest is published and the daemon ends", || !is_running(pid(&mounted)));
    let next = rig.mount("b", "n", "--workspace w").json();
    assert_eq!(next["lost_window"]["state"], "none", "{next}");
    assert_eq!(fs::read(rig.path("n/after")).unwrap(), pattern(1 << 20, 5));
}

/// In a mount namespace of its own, where `/dev/fuse` is open to all: here it may be root's alone.
const AS_NOBODY: &str = r#"
set -eu
mknod "$DIR/fuse" c 10 229 && chmod 666 "$DIR/fuse" && mount --bind "$DIR/fuse" /dev/fuse
run() { setpriv --reuid nobody --clear-groups "$DIR/sandbox-workspace" --json "$@"; }
run mount --workspace w "$HOME/m"
setpriv --reuid nobody --clear-groups sh -c 'echo mine > "$HOME/m/x" && cat "$HOME/m/x" >&2'
run status "$HOME/m"
run unmount "$HOME/m"
"#;

#[test]
fn an_ordinary_user_mounts_through_fusermount3() {
    let rig = Rig::new();
    let home = rig.place("home");
    let user = nix::unistd::User::from_name("nobody").unwrap().expect("there is a user nobody");
    rig.place("home/m");
    rig.program_for_all();
    for p in [rig.dir.path(), &home, &rig.path("home/m"), &rig.path("store")] {
        std::os::unix::fs::chown(p, Some(user.uid.as_raw()), None).unwrap();
    }
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", AS_NOBODY]).env("DIR", rig.dir.path()).env("HOME", &home);
    let out = command.env("HILOOP_STORE", rig.store()).env("XDG_CACHE_HOME", home.join(".cache")).output().unwrap();
    let (stdout, stderr) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    rig.remember_daemon(stdout.lines().next().unwrap_or_default());
    assert!(out.status.success(), "{stdout}{stderr}");
    let rows: Vec<serde_json::Value> = stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let [mounted, status, left] = rows.as_slice() else { panic!("{stdout}") };
    assert_eq!(mounted["cache_dir"].as_str().unwrap(), home.join(".cache/hiloop/workspace").display().to_string());
    assert_eq!((&status["workspace"], &left["left_bytes"]), (&"w".into(), &0.into()));
    assert!(stderr.contains("mine"), "{stderr}");
    assert_eq!(fs::metadata(home.join(".cache/hiloop/workspace")).unwrap().uid(), user.uid.as_raw());
}

#[test]
fn traces_go_to_the_endpoint_that_is_named() {
    let rig = Rig::new();
    let collector = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("--otlp-endpoint http://{}", collector.local_addr().unwrap());
    let mounted = rig.mount("a", "m", &format!("--workspace w {endpoint}")).json();
    rig.sh("unmount {m}").ok();
    signal(pid(&mounted), nix::sys::signal::Signal::SIGTERM);
    let (mut stream, _) = collector.accept().unwrap();
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).unwrap();
    assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "gRPC is HTTP/2");
}

#[test]
fn traces_go_over_tls_to_a_collector_whose_authority_is_named() {
    let authority = crate::authority::Authority::new();
    let mut config = authority.server();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let config = std::sync::Arc::new(config);
    let collector = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("--otlp-endpoint https://localhost:{}", collector.local_addr().unwrap().port());
    let (tell, told) = std::sync::mpsc::channel();
    // An exporter that was too slow tries again.
    std::thread::spawn(move || {
        for stream in collector.incoming() {
            let mut tls = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut preface = [0; 24];
            if rustls::Stream::new(&mut tls, &mut stream.unwrap()).read_exact(&mut preface).is_ok() && tell.send(preface).is_err() {
                return;
            }
        }
    });
    let rig = Rig::new();
    rig.mount("a", "m", &format!("--workspace w {endpoint} --ca-file {}", authority.file("ca.pem").display())).ok();
    let preface = told.recv_timeout(std::time::Duration::from_secs(120)).unwrap();
    assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "gRPC is HTTP/2");
}
