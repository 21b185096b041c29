//! Bug reports against peers that this file system would meet too: each test names what it guards.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use nix::fcntl::AtFlags;

use crate::rig::{Rig, pid};

/// A mounted empty workspace.
fn mounted() -> (Rig, PathBuf, i32) {
    let rig = Rig::new();
    let daemon = pid(&rig.mount("a", "m", "--workspace w").json());
    let m = rig.path("m");
    (rig, m, daemon)
}

fn requests(rig: &Rig, opcode: &str) -> u64 {
    rig.status("{m}")["fuse"]["requests"][opcode].as_u64().unwrap_or(0)
}

/// juicedata/juicefs#5038, #5315, #5188: zeros instead of appended data through a second descriptor, EBADF on appends.
#[test]
fn appended_bytes_are_never_zeros_to_another_reader_also_after_a_kill() {
    let (rig, m, daemon) = mounted();
    let line = |i: usize| format!("record {i:06}\n");
    let mut append = OpenOptions::new().append(true).create(true).open(m.join("log")).unwrap();
    let reader = File::open(m.join("log")).unwrap();
    let mut expected = String::new();
    for i in 0..500 {
        append.write_all(line(i).as_bytes()).unwrap();
        expected += &line(i);
        let at = expected.len() - line(i).len();
        let mut last = vec![0; line(i).len()];
        reader.read_exact_at(&mut last, at as u64).unwrap();
        assert_eq!(String::from_utf8(last).unwrap(), line(i));
        if i % 100 == 50 {
            // Another O_APPEND|O_WRONLY descriptor goes on at the same end.
            let mut other = OpenOptions::new().append(true).open(m.join("log")).unwrap();
            other.write_all(b"other\n").unwrap();
            expected += "other\n";
        }
    }
    rig.kill(daemon);
    rig.mount("a", "m", "--workspace w").ok();
    assert_eq!(fs::read_to_string(m.join("log")).unwrap(), expected);
}

/// juicedata/juicefs#6770: locks that are lost or fail under a storm; rust-lang/cargo#4629: locks that exclude nobody.
#[test]
fn a_storm_on_one_lock_loses_no_update() {
    let (_rig, m, _) = mounted();
    fs::write(m.join("count"), "0").unwrap();
    let script = "i=0; while [ $i -lt 20 ]; do flock lock sh -c 'n=$(cat count); echo $((n+1)) >count' || exit 9; i=$((i+1)); done";
    let mut storm: Vec<_> = (0..8).map(|_| Command::new("sh").args(["-c", script]).current_dir(&m).spawn().unwrap()).collect();
    for process in &mut storm {
        assert!(process.wait().unwrap().success());
    }
    assert_eq!(fs::read_to_string(m.join("count")).unwrap().trim(), "160");
}

/// seaweedfs/seaweedfs#3351: a link's size is not that of its target, so git calls it modified.
#[test]
fn a_symbolic_links_size_is_that_of_its_target() {
    let (_rig, m, _) = mounted();
    for len in [1, 59, 60, 61, 255, 1000, 4095] {
        let link = m.join(format!("l{len}"));
        std::os::unix::fs::symlink("t".repeat(len), &link).unwrap();
        assert_eq!(fs::symlink_metadata(&link).unwrap().len(), len as u64);
        assert_eq!(fs::read_link(&link).unwrap().as_os_str().len(), len);
    }
}

/// rclone/rclone#5853: a stale lock file when it is renamed over a file that somebody has open.
#[test]
fn a_lock_file_renamed_over_an_open_file_is_gone_a_thousand_times() {
    let (_rig, m, _) = mounted();
    fs::write(m.join("index"), "first").unwrap();
    for i in 0..1000 {
        let open = File::open(m.join("index")).unwrap();
        let mut lock = OpenOptions::new().write(true).create_new(true).open(m.join("index.lock")).unwrap();
        write!(lock, "index {i}").unwrap();
        drop(lock);
        fs::rename(m.join("index.lock"), m.join("index")).unwrap();
        assert_eq!(open.metadata().unwrap().nlink(), 0, "the open one lost its name");
    }
    assert_eq!(fs::read_to_string(m.join("index")).unwrap(), "index 999");
    assert_eq!(fs::read_dir(&m).unwrap().count(), 1);
}

/// pnpm/pnpm#14771, oven-sh/bun#36853: hard links refused or miscounted.
#[test]
fn hard_links_across_directories_count_exactly_and_share_one_inode() {
    let (_rig, m, _) = mounted();
    fs::write(m.join("file"), "x").unwrap();
    let of = |p: &Path| fs::symlink_metadata(p).map(|s| (s.ino(), s.nlink())).unwrap();
    let (ino, _) = of(&m.join("file"));
    for i in 0..50 {
        fs::create_dir_all(m.join(format!("d{i}/deep"))).unwrap();
        fs::hard_link(m.join("file"), m.join(format!("d{i}/deep/name"))).unwrap();
        assert_eq!(of(&m.join(format!("d{i}/deep/name"))), (ino, i + 2));
    }
    for i in 0..50 {
        fs::remove_file(m.join(format!("d{i}/deep/name"))).unwrap();
        assert_eq!(of(&m.join("file")), (ino, 50 - i));
    }
}

/// libfuse/libfuse#637, ydb-platform/nbs#7151: an open that races a rename over its name fails with ENOENT.
#[test]
fn a_name_that_is_renamed_over_again_and_again_can_always_be_opened() {
    let (_rig, m, _) = mounted();
    fs::write(m.join("name"), "0").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        let openers: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(|| {
                    let mut opened = 0;
                    // At least some after the last rename, so that the loop has run.
                    while !done.load(Ordering::SeqCst) || opened == 0 {
                        let mut text = String::new();
                        File::open(m.join("name")).unwrap().read_to_string(&mut text).unwrap();
                        assert!(!text.is_empty());
                        opened += 1;
                    }
                })
            })
            .collect();
        for i in 0..1000 {
            fs::write(m.join("next"), i.to_string()).unwrap();
            fs::rename(m.join("next"), m.join("name")).unwrap();
        }
        done.store(true, Ordering::SeqCst);
        openers.into_iter().for_each(|o| o.join().unwrap());
    });
}

/// jingkaihe/matchlock#81: what is open below a renamed directory keeps its old path; awslabs/mountpoint-s3#995: unlink while writing.
#[test]
fn open_files_follow_their_inode_through_renames_and_unlinking() {
    let (_rig, m, _) = mounted();
    fs::create_dir_all(m.join("a/b")).unwrap();
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(m.join("a/b/f")).unwrap();
    file.write_all(b"one ").unwrap();
    fs::rename(m.join("a"), m.join("z")).unwrap();
    file.write_all(b"two ").unwrap();
    assert_eq!(fs::read_to_string(m.join("z/b/f")).unwrap(), "one two ");
    fs::create_dir_all(m.join("a/b")).unwrap();
    fs::write(m.join("a/b/f"), "another file").unwrap();
    fs::remove_file(m.join("z/b/f")).unwrap();
    file.write_all(b"three").unwrap();
    let mut text = vec![0; 13];
    file.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(text, b"one two three");
    assert_eq!((file.metadata().unwrap().nlink(), file.metadata().unwrap().len()), (0, 13));
    assert_eq!(fs::read_to_string(m.join("a/b/f")).unwrap(), "another file");
}

/// Sherlock-Holo/fuse3#12, tavianator/bfs#67: rm -rf leaves entries, as offsets shift under it.
#[test]
fn a_directory_is_emptied_while_it_is_listed() {
    let (_rig, m, _) = mounted();
    fs::create_dir(m.join("d")).unwrap();
    for i in 0..3000 {
        File::create(m.join(format!("d/{i:05}-{}", "x".repeat(100)))).unwrap();
    }
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(m.join("d")).unwrap() {
        let path = entry.unwrap().path();
        fs::remove_file(&path).unwrap();
        assert!(seen.insert(path), "no entry comes twice");
    }
    assert_eq!(seen.len(), 3000);
    fs::remove_dir(m.join("d")).unwrap();
}

/// NixOS/nix#14831: O_TMPFILE.
#[test]
fn a_nameless_file_takes_no_name_until_it_is_given_one() {
    let (rig, m, daemon) = mounted();
    let nameless =
        |flags: i32| OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE | flags).open(&m).unwrap();
    let link = |file: &File, name: &str| {
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        nix::unistd::linkat(nix::fcntl::AT_FDCWD, from.as_str(), nix::fcntl::AT_FDCWD, &m.join(name), AtFlags::AT_SYMLINK_FOLLOW)
    };
    let (mut stays, mut goes, private) = (nameless(0), nameless(0), nameless(libc::O_EXCL));
    stays.write_all(b"stays").unwrap();
    goes.write_all(&[1; 5000]).unwrap();
    assert!(fs::read_dir(&m).unwrap().next().is_none());
    assert_eq!((stays.metadata().unwrap().nlink(), goes.metadata().unwrap().len()), (0, 5000));
    link(&stays, "name").unwrap();
    assert_eq!(link(&private, "other").unwrap_err(), nix::errno::Errno::ENOENT, "O_EXCL says that it never gets one");
    assert_eq!(link(&goes, "name").unwrap_err(), nix::errno::Errno::EEXIST);
    assert_eq!(stays.metadata().unwrap().nlink(), 1);
    drop((stays, goes, private));
    rig.until("the others are gone", || rig.status("{m}")["fuse"]["orphans"] == 0);
    rig.kill(daemon);
    rig.mount("a", "m", "--workspace w").ok();
    assert_eq!(fs::read_to_string(m.join("name")).unwrap(), "stays");
    rig.sh("flush {m}").ok();
    rig.sh("fsck --deep").ok();
}

/// cvmfs/cvmfs#2834: an inode number comes back as another type; tursodatabase/agentfs#203, ipfs/kubo#11429: it changes by itself.
#[test]
fn an_inode_number_is_never_used_twice_and_never_changes() {
    let (rig, m, daemon) = mounted();
    let ino = |name: &str| fs::symlink_metadata(m.join(name)).unwrap().ino();
    let mut used = BTreeSet::new();
    fs::write(m.join("stays"), "x").unwrap();
    let stays = ino("stays");
    let churn = |used: &mut BTreeSet<u64>| {
        for i in 0..50 {
            let name = m.join("churn");
            match i % 3 {
                0 => drop(File::create(&name).unwrap()),
                1 => fs::create_dir(&name).unwrap(),
                _ => std::os::unix::fs::symlink("x", &name).unwrap(),
            }
            assert!(used.insert(ino("churn")), "used twice");
            if i % 3 == 1 { fs::remove_dir(&name).unwrap() } else { fs::remove_file(&name).unwrap() }
        }
    };
    churn(&mut used);
    fs::write(m.join("stays"), "changed").unwrap();
    rig.kill(daemon);
    rig.mount("a", "m", "--workspace w").ok();
    assert_eq!(ino("stays"), stays);
    churn(&mut used);
    rig.sh("unmount {m}").ok();
    rig.mount("b", "m", "--workspace w").ok();
    assert_eq!(ino("stays"), stays, "also on another node");
    churn(&mut used);
}

/// ejc3/fcvm#656, libfuse/libfuse#1131, fuse-backend-rs#130, containers/fuse-overlayfs#378: a descriptor of the daemon for each open file,
/// inode or mapping.
#[test]
fn the_daemon_holds_no_descriptor_for_an_open_file() {
    let (_rig, m, daemon) = mounted();
    let held = || fs::read_dir(format!("/proc/{daemon}/fd")).unwrap().count();
    let before = held();
    let open: Vec<File> = (0..900).map(|i| File::create(m.join(format!("f{i}"))).unwrap()).collect();
    let more = held();
    assert!(more < before + 100, "{more} descriptors for {} open files, {before} before", open.len());
}

/// juicedata/juicefs#5357, ydb-platform/nbs#3045: a getxattr for each write.
#[test]
fn writing_asks_for_no_attribute() {
    let (rig, m, _) = mounted();
    let mut file = File::create(m.join("f")).unwrap();
    file.write_all(b"first").unwrap();
    let (before, written) = (requests(&rig, "getxattr"), requests(&rig, "write"));
    for _ in 0..1000 {
        file.write_all(b"more").unwrap();
    }
    assert!(requests(&rig, "write") >= written + 1000, "they were writes of their own");
    assert_eq!(requests(&rig, "getxattr"), before);
}

/// CurvineIO/curvine#1484, #1165, #1487: stale times after truncate and copy, times before 1970 clamped.
#[test]
fn times_move_with_content_and_may_lie_before_1970() {
    let (rig, m, daemon) = mounted();
    let path = m.join("f");
    let old = SystemTime::UNIX_EPOCH - Duration::new(14_182_940, 123_456_789);
    let time = |p: &Path| fs::metadata(p).unwrap().modified().unwrap();
    let file = File::create(&path).unwrap();
    fs::write(m.join("source"), "source").unwrap();
    let changes: [(&str, &dyn Fn()); 3] = [
        ("truncate", &|| file.set_len(100).unwrap()),
        ("write", &|| file.write_all_at(b"x", 0).unwrap()),
        ("copy", &|| assert_eq!(fs::copy(m.join("source"), &path).unwrap(), 6)),
    ];
    for (what, change) in changes {
        file.set_modified(old).unwrap();
        assert_eq!(time(&path), old);
        change();
        assert!(time(&path) > SystemTime::UNIX_EPOCH, "{what} moves the time");
    }
    file.set_modified(old).unwrap();
    drop(file);
    rig.kill(daemon);
    rig.mount("a", "m", "--workspace w").ok();
    assert_eq!(time(&path), old, "to the nanosecond, also after a restart");
}

/// rust-lang/rust#50962, cargo-lambda#684: ETXTBSY when a program is run right after it was written.
#[test]
fn a_program_runs_as_soon_as_it_is_closed() {
    let (_rig, m, _) = mounted();
    let program = fs::read("/bin/true").unwrap();
    std::thread::scope(|s| {
        for thread in 0..8 {
            let (m, program) = (&m, &program);
            s.spawn(move || {
                for i in 0..5 {
                    let path = m.join(format!("true-{thread}-{i}"));
                    // Only `sh` holds it open while others fork: a descriptor of ours would be inherited by their children for a moment.
                    let script = format!("cat >{0} && chmod 755 {0} && exec {0}", path.display());
                    let mut shell = Command::new("sh").args(["-c", &script]).stdin(std::process::Stdio::piped()).spawn().unwrap();
                    shell.stdin.take().unwrap().write_all(program).unwrap();
                    assert!(shell.wait().unwrap().success());
                }
            });
        }
    });
}

/// Set for [`map_and_read`]: the file.
const MAPPED: &str = "HILOOP_TEST_MAPPED";

#[test]
#[ignore = "a process of its own, started by the test below"]
fn map_and_read() {
    let file = File::open(std::env::var_os(MAPPED).unwrap()).unwrap();
    // SAFETY: a fresh private mapping of the first page of a file that is open and not empty; checked below.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: within the mapping, which stands until the process ends.
    println!("read {}", unsafe { at.cast::<u8>().read_volatile() });
}

/// awslabs/mountpoint-s3#1422: a store that fails shows as ENOENT, and the kernel remembers it. A mapped page that cannot be fetched is
/// SIGBUS for who touches it (juicedata/juicefs#4678), after the deadline of a read and for this time only.
#[test]
fn a_failing_store_is_an_io_error_and_is_not_remembered() {
    let rig = Rig::new();
    rig.plant();
    rig.publish("b1");
    rig.mount("a", "m", "--workspace w --base b1").ok();
    let (path, mapped) = (rig.path("m/etc/deep/er/data"), rig.path("m/file-49"));
    let reader = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "reports::map_and_read", "--ignored", "--nocapture"]).env(MAPPED, &mapped);
        command.stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    rig.store_away();
    let doomed = reader();
    assert_eq!(fs::read(&path).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(fs::metadata(&path).is_ok(), "what is here is answered");
    assert_eq!(doomed.wait_with_output().unwrap().status.signal(), Some(libc::SIGBUS));
    rig.store_back();
    assert_eq!(fs::read(&path).unwrap(), fs::read(rig.path("tree/etc/deep/er/data")).unwrap());
    let first = fs::read(rig.path("tree/file-49")).unwrap()[0];
    let said = String::from_utf8(reader().wait_with_output().unwrap().stdout).unwrap();
    assert!(said.contains(&format!("read {first}\n")), "{said}");
}

/// juicedata/juicefs#4678, prometheus/prometheus#15344: SIGBUS for writers and readers of mappings. What was brought here can be mapped,
/// changed and synced whether the store answers or not.
#[test]
fn mapped_pages_do_not_depend_on_the_store() {
    let (rig, m, _) = mounted();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(m.join("f")).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(&vec![7; 1 << 20], 0).unwrap();
    rig.sh("flush {m}").ok();
    rig.store_away();
    // SAFETY: a fresh shared mapping of a file that is open and as long as the mapping; checked below.
    let at =
        unsafe { libc::mmap(std::ptr::null_mut(), 1 << 20, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: the mapping is a megabyte, this is the only reference into it, and it ends before the mapping.
    let pages = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), 1 << 20) };
    assert!(pages.iter().step_by(4096).all(|b| *b == 7));
    pages[5000] = 9;
    // SAFETY: the whole mapping, which stands until the next line.
    assert_eq!(unsafe { libc::msync(at, 1 << 20, libc::MS_SYNC) }, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: nothing refers to the mapping any more.
    assert_eq!(unsafe { libc::munmap(at, 1 << 20) }, 0);
    rig.store_back();
    assert_eq!(fs::read(m.join("f")).unwrap()[5000], 9);
}

/// B42: in the sandboxes' read path, without limits of its own.
#[test]
fn reads_pass_the_daemon_once_and_nothing_is_limited_by_default() {
    let rig = Rig::new();
    rig.plant();
    rig.publish("b1");
    let daemon = pid(&rig.mount("a", "m", "--workspace w --base b1").json());
    let path = rig.path("m/etc/deep/er/data");
    assert_eq!(requests(&rig, "read"), 0);
    let first = fs::read(&path).unwrap();
    let read = requests(&rig, "read");
    assert!(read > 0, "the daemon is in the read path");
    // Again, and a stat of it: from the kernel's cache, but for the open.
    let before = rig.status("{m}")["fuse"]["requests"].clone();
    assert_eq!(fs::read(&path).unwrap(), first);
    for _ in 0..100 {
        fs::metadata(&path).unwrap();
    }
    let after = rig.status("{m}")["fuse"]["requests"].clone();
    for opcode in ["read", "lookup", "getxattr", "readdir"] {
        assert_eq!(after[opcode], before[opcode], "{opcode}: {after}");
    }
    assert!(after["getattr"].as_u64().unwrap_or(0) <= before["getattr"].as_u64().unwrap_or(0) + 1, "{after}");
    // Neither a quota, nor a cap on the cache, nor limits on the process beyond those of whoever started it.
    assert!(rig.status("{m}")["quota"].is_null());
    let own = |of: &str, file: &str| fs::read_to_string(format!("/proc/{of}/{file}")).unwrap();
    let soft =
        |text: &str, what: &str| text.lines().find(|l| l.starts_with(what)).unwrap().split_whitespace().rev().nth(2).map(str::to_owned);
    let (ours, theirs) = (own("self", "limits"), own(&daemon.to_string(), "limits"));
    for what in ["Max address space", "Max resident set", "Max processes", "Max file size", "Max cpu time"] {
        assert_eq!(soft(&ours, what), soft(&theirs, what), "{what}");
    }
    assert_eq!(own("self", "cgroup"), own(&daemon.to_string(), "cgroup"));
}

/// Found by pjdfstest on a busy machine: a running program that was opened for reading and cut lost its content, and with it its life.
#[test]
fn a_running_program_is_not_cut_by_who_opens_it() {
    let (_rig, m, _) = mounted();
    let program = m.join("program");
    fs::copy("/bin/sleep", &program).unwrap();
    let size = fs::metadata(&program).unwrap().len();
    let mut running = Command::new(&program).arg("100").spawn().unwrap();
    for flags in [libc::O_RDONLY | libc::O_TRUNC, libc::O_WRONLY | libc::O_TRUNC, libc::O_RDWR] {
        let name = std::ffi::CString::new(program.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a path that ends with a zero byte; the result is no descriptor, as checked below.
        let opened = unsafe { libc::open(name.as_ptr(), flags) };
        let error = std::io::Error::last_os_error();
        assert_eq!((opened, error.raw_os_error()), (-1, Some(libc::ETXTBSY)), "{flags:o}");
        assert_eq!(fs::metadata(&program).unwrap().len(), size, "{flags:o}");
    }
    assert!(running.try_wait().unwrap().is_none(), "it goes on");
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(fs::read(&program).unwrap(), fs::read("/bin/sleep").unwrap());
}
