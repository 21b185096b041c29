//! The program, over its socket.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use hiloop_keeper::Client;

struct Rig {
    process: Child,
    dir: tempfile::TempDir,
}

impl Rig {
    fn new(deadline: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_hiloop-keeper"));
        command.arg("--socket").arg(dir.path().join("k")).args(["--orphan-deadline", deadline]).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { process, dir }
    }
    fn path(&self) -> PathBuf {
        self.dir.path().join("k")
    }
    fn client(&self) -> Client {
        Client::connect(&self.path()).unwrap()
    }
    fn daemon(&self) -> Client {
        let c = self.client();
        c.claim().unwrap();
        c
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

#[test]
fn what_a_daemon_gave_its_successor_gets() {
    let rig = Rig::new("0s");
    let files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
    let first = rig.daemon();
    assert_eq!(first.pid(), rig.process.id() as i32);
    first.hold(7, "/mnt/seven", "about seven".into(), &[files[0].as_fd(), files[1].as_fd()]).unwrap();
    first.hold(9, "/mnt/nine", "about nine".into(), &[files[0].as_fd()]).unwrap();
    first.hold(9, "/mnt/nine", "newer".into(), &[files[0].as_fd()]).unwrap();
    first.hold(12, "/mnt/gone", String::new(), &[files[0].as_fd()]).unwrap();
    first.release(12).unwrap();
    drop(first);

    let second = rig.daemon();
    let seven = second.take(0).unwrap().unwrap();
    assert_eq!((seven.connection, seven.about.as_str(), seven.devices.len()), (7, "about seven", 2));
    // In the order in which they were given.
    File::from(seven.devices.into_iter().next_back().unwrap()).set_len(5).unwrap();
    assert_eq!(files[1].metadata().unwrap().len(), 5);
    let nine = second.take(7).unwrap().unwrap();
    assert_eq!((nine.connection, nine.about.as_str()), (9, "newer"));
    assert!(second.take(9).unwrap().is_none());
    let (daemon, rows) = rig.client().list().unwrap();
    assert_eq!(daemon, Some(std::process::id() as i32));
    assert_eq!(
        rows.iter().map(|r| (r.connection, r.mountpoint.as_str(), r.descriptors)).collect::<Vec<_>>(),
        [(7, "/mnt/seven", 2), (9, "/mnt/nine", 1)]
    );
}

#[test]
fn only_the_last_daemon_may_change_anything() {
    let rig = Rig::new("0s");
    let file = tempfile::tempfile().unwrap();
    let (first, second) = (rig.daemon(), rig.daemon());
    for other in [first, rig.client()] {
        assert!(other.hold(1, "", String::new(), &[file.as_fd()]).unwrap_err().to_string().contains("claimed"));
        assert!(other.take(0).is_err() && other.release(1).is_err());
    }
    assert!(second.hold(1, "", String::new(), &[]).unwrap_err().to_string().contains("no descriptor"));
    second.hold(1, "", String::new(), &[file.as_fd()]).unwrap();
    assert!(rig.client().abort(2).is_err());
    rig.client().abort(1).unwrap();
    assert!(second.take(0).unwrap().is_none());
}

/// Reading the other end of a pipe ends once nobody holds this one.
#[test]
fn mounts_are_let_go_when_no_daemon_comes_and_not_while_one_is_there() {
    use std::io::Read;
    let rig = Rig::new("1ms");
    let (mut read, write) = std::io::pipe().unwrap();
    let daemon = rig.daemon();
    daemon.hold(1, "", String::new(), &[write.as_fd()]).unwrap();
    drop(write);
    assert_eq!(rig.client().list().unwrap().1.len(), 1);
    drop(daemon);
    assert_eq!(read.read(&mut [0]).unwrap(), 0);
    assert!(rig.client().list().unwrap().1.is_empty());
}

#[test]
fn nonsense_costs_its_sender_the_connection_and_nobody_else_anything() {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
    use std::os::fd::AsRawFd;
    let rig = Rig::new("0s");
    let daemon = rig.daemon();
    for words in [&b"junk"[..], b"{}", &[b'x'; 100_000]] {
        let s = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        connect(s.as_raw_fd(), &UnixAddr::new(&rig.path()).unwrap()).unwrap();
        nix::unistd::write(&s, words).unwrap();
        // The end, or a reset where not all was read.
        assert!(nix::unistd::read(&s, &mut [0; 64]).is_ok_and(|n| n == 0) || words.len() > 10);
    }
    daemon.claim().unwrap();
    let second = Command::new(env!("CARGO_BIN_EXE_hiloop-keeper")).arg("--socket").arg(rig.path()).output().unwrap();
    assert!(!second.status.success(), "one keeper for a socket");
    daemon.claim().unwrap();
}
