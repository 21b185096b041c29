//! `powercut-fs` through the kernel. Needs root and `/dev/fuse`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command};

use nix::fcntl::{FallocateFlags, Flock, FlockArg, fallocate};

struct Disk {
    dir: tempfile::TempDir,
    process: Child,
}

impl Disk {
    fn new(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("m")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_powercut-fs"));
        let process = command.arg("--socket").arg(dir.path().join("switch")).args(options).arg(dir.path().join("m")).spawn().unwrap();
        let disk = Self { dir, process };
        // The socket stands before the mount, and answers after it.
        let connected = (0..1000).any(|_| {
            std::thread::park_timeout(std::time::Duration::from_millis(5));
            UnixStream::connect(disk.dir.path().join("switch")).is_ok()
        });
        assert!(connected);
        assert!(disk.tell("state").starts_with("ok on"));
        disk
    }
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("m").join(name)
    }
    fn tell(&self, command: &str) -> String {
        let mut stream = UnixStream::connect(self.dir.path().join("switch")).unwrap();
        writeln!(stream, "{command}").unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.dir.path().join("m"), nix::mount::MntFlags::MNT_DETACH);
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_cut_freezes_the_mount_and_leaves_what_was_flushed() {
    let disk = Disk::new(&[]);
    fs::create_dir(disk.path("d")).unwrap();
    let kept = File::create(disk.path("d/kept")).unwrap();
    kept.write_all_at(&[1; 10_000], 0).unwrap();
    kept.sync_all().unwrap();
    File::open(disk.path("d")).unwrap().sync_all().unwrap();
    File::open(disk.path("")).unwrap().sync_all().unwrap();
    let device = fs::metadata(disk.path("")).unwrap().dev();
    kept.write_all_at(&[2; 512], 0).unwrap();
    assert_eq!(disk.tell("cut 7"), "ok");
    let eio = |e: std::io::Error| e.raw_os_error() == Some(libc::EIO);
    assert!(eio(kept.write_all_at(&[3; 10], 0).unwrap_err()));
    assert!(eio(kept.sync_all().unwrap_err()));
    assert!(eio(File::create(disk.path("new")).unwrap_err()));
    assert!(eio(fs::read_dir(disk.path("d")).map(drop).unwrap_err()));
    assert!(disk.tell("restore").starts_with("ok names_kept="));
    assert!(eio(kept.write_all_at(&[3; 10], 0).unwrap_err()), "handles of before are void");
    let bytes = fs::read(disk.path("d/kept")).unwrap();
    assert!(bytes[..512].iter().all(|b| *b == bytes[0]) && bytes[0] < 3);
    assert_eq!(bytes[512..], [1; 10_000 - 512]);
    assert_eq!(fs::metadata(disk.path("")).unwrap().dev(), device, "the same mount, as after a reboot");
    fs::write(disk.path("d/goes-on"), b"x").unwrap();
    assert_eq!(disk.tell("nonsense").split(':').next(), Some("error"));
}

#[test]
fn an_armed_cut_comes_by_itself() {
    let disk = Disk::new(&["--ext4"]);
    let file = File::create(disk.path("a")).unwrap();
    disk.tell("arm 3 1");
    file.write_all_at(b"1", 0).unwrap();
    file.sync_data().unwrap();
    file.write_all_at(b"2", 1).unwrap();
    file.sync_data().unwrap_err();
    assert!(disk.tell("state").starts_with("ok cut"));
    disk.tell("restore");
    // With ext4's flush the name came along.
    assert_eq!(fs::read(disk.path("a")).unwrap()[0], b'1');
}

#[test]
fn it_carries_what_a_node_directory_needs() {
    let disk = Disk::new(&[]);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(disk.path("f")).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    file.write_all_at(&[5; 16_384], 4096).unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), 32);
    fallocate(&file, FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE, 8192, 4096).unwrap();
    let mut read = [0; 3];
    for (at, byte) in [(4096, 5), (8192, 0), (12_288, 5)] {
        file.read_exact_at(&mut read, at).unwrap();
        assert_eq!(read, [byte; 3], "at {at}");
    }
    file.set_len(10).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10);
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
    let other = File::open(disk.path("f")).unwrap();
    assert!(Flock::lock(other, FlockArg::LockSharedNonblock).is_err(), "flock is kept");
    fs::rename(disk.path("f"), disk.path("g")).unwrap();
    fs::write(disk.path("f"), b"old").unwrap();
    fs::rename(disk.path("f"), disk.path("g")).unwrap();
    assert_eq!(lock.metadata().unwrap().nlink(), 0, "replaced, and still open");
    let socket = disk.path("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    UnixStream::connect(&socket).unwrap();
    listener.accept().unwrap();
    for i in 0..300 {
        fs::write(disk.path(&format!("many-{i}")), [i as u8]).unwrap();
    }
    for entry in fs::read_dir(disk.path("")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!(fs::read_dir(disk.path("")).unwrap().count(), 0, "a listing is stable while names go");
    assert!(nix::sys::statvfs::statvfs(&disk.path("")).unwrap().blocks_available() > 1 << 20);
}
