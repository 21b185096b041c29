//! Every kind of request, as programs make them.

use std::collections::BTreeSet;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hiloop_transport::Config;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use crate::rig::{Rig, config, null};

fn rig() -> Rig {
    Rig::new(Arc::new(null()), config())
}

#[test]
fn names_come_go_and_move() {
    let r = rig();
    let (a, b, d) = (r.path("a"), r.path("b"), r.path("d"));
    fs::create_dir(&d).unwrap();
    fs::write(&a, "one").unwrap();
    assert_eq!(fs::create_dir(&d).unwrap_err().kind(), ErrorKind::AlreadyExists);
    fs::rename(&a, d.join("a")).unwrap();
    assert_eq!(fs::metadata(&a).unwrap_err().kind(), ErrorKind::NotFound);
    fs::write(&b, "two").unwrap();
    renameat2(AT_FDCWD, &b, AT_FDCWD, &d.join("a"), RenameFlags::RENAME_EXCHANGE).unwrap();
    assert_eq!((fs::read(&b).unwrap(), fs::read(d.join("a")).unwrap()), (b"one".to_vec(), b"two".to_vec()));
    let refused = renameat2(AT_FDCWD, &b, AT_FDCWD, &d.join("a"), RenameFlags::RENAME_NOREPLACE);
    assert_eq!(refused, Err(nix::errno::Errno::EEXIST));
    fs::rename(&b, d.join("a")).unwrap();
    assert_eq!(fs::read(d.join("a")).unwrap(), b"one");
    assert_eq!(fs::remove_dir(&d).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    fs::hard_link(d.join("a"), r.path("link")).unwrap();
    assert_eq!(fs::metadata(r.path("link")).unwrap().nlink(), 2);
    symlink("d/a", r.path("soft")).unwrap();
    assert_eq!(fs::read(r.path("soft")).unwrap(), b"one");
    assert_eq!(fs::read_link(r.path("soft")).unwrap().to_str(), Some("d/a"));
    fs::remove_file(d.join("a")).unwrap();
    fs::remove_dir(&d).unwrap();
    assert_eq!(fs::read(r.path("link")).unwrap(), b"one");
    nix::sys::stat::mknod(&r.path("fifo"), nix::sys::stat::SFlag::S_IFIFO, nix::sys::stat::Mode::S_IRWXU, 0).unwrap();
    assert_eq!(fs::metadata(r.path("fifo")).unwrap().mode() & libc::S_IFMT, libc::S_IFIFO);
    assert_eq!(r.session.stats().unanswered + r.session.stats().malformed, 0);
}

#[test]
fn long_names_are_served_and_longer_ones_refused() {
    let r = rig();
    let long = "n".repeat(255);
    fs::write(r.path(&long), "x").unwrap();
    fs::rename(r.path(&long), r.path(&"m".repeat(255))).unwrap();
    assert_eq!(fs::read_dir(r.mounted.path()).unwrap().next().unwrap().unwrap().file_name().len(), 255);
    assert_eq!(File::create(r.path(&"n".repeat(256))).unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
}

#[test]
fn listings_of_any_length_are_whole() {
    let r = rig();
    let names: BTreeSet<String> = (0..1500).map(|n| format!("{n:0width$}", width = 4 + n % 200)).collect();
    names.iter().for_each(|n| drop(File::create(r.path(n)).unwrap()));
    let list = || fs::read_dir(r.mounted.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect::<BTreeSet<_>>();
    assert_eq!(list(), names);
    // With attributes of each, which asks for listings with nodes; and while entries go.
    for (n, e) in fs::read_dir(r.mounted.path()).unwrap().enumerate() {
        let e = e.unwrap();
        assert!(e.metadata().unwrap().is_file());
        if n % 2 == 0 {
            fs::remove_file(e.path()).unwrap();
        }
    }
    assert_eq!(list().len(), names.len() / 2);
}

#[test]
fn large_content_goes_both_ways() {
    let r = rig();
    let data: Vec<u8> = (0..16u32 << 20).map(|n| (n ^ (n >> 11)) as u8).collect();
    fs::write(r.path("big"), &data).unwrap();
    assert!(fs::read(r.path("big")).unwrap() == data);
    // Past the page cache, in the longest requests there are.
    let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(r.path("big")).unwrap();
    let mut back = vec![0; data.len()];
    direct.read_exact_at(&mut back, 0).unwrap();
    assert!(back == data);
    back.reverse();
    direct.write_all_at(&back, 0).unwrap();
    drop(direct);
    assert!(fs::read(r.path("big")).unwrap() == back);
}

#[test]
fn files_are_cut_extended_and_sought_in() {
    let r = rig();
    let path = r.path("f");
    let mut f = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    f.write_all(b"0123456789").unwrap();
    f.set_len(4).unwrap();
    f.set_len(6).unwrap();
    f.rewind().unwrap();
    let mut all = Vec::new();
    f.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"0123\0\0");
    assert_eq!(f.seek(SeekFrom::End(-1)).unwrap(), 5);
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"+").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"0123\0\0+");
    nix::fcntl::fallocate(&f, nix::fcntl::FallocateFlags::empty(), 0, 9).unwrap();
    let punch = nix::fcntl::FallocateFlags::FALLOC_FL_PUNCH_HOLE | nix::fcntl::FallocateFlags::FALLOC_FL_KEEP_SIZE;
    nix::fcntl::fallocate(&f, punch, 1, 2).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"0\0\x003\0\0+\0\0");
    f.sync_all().unwrap();
    f.sync_data().unwrap();
    let copied = fs::copy(&path, r.path("copy")).unwrap();
    assert_eq!((copied, fs::read(r.path("copy")).unwrap()), (9, fs::read(&path).unwrap()));
    File::create(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0, "O_TRUNC cuts");
}

#[test]
fn attributes_are_kept() {
    let r = rig();
    let path = r.path("f");
    let f = File::create(&path).unwrap();
    f.set_permissions(fs::Permissions::from_mode(0o4640)).unwrap();
    std::os::unix::fs::chown(&path, Some(1234), Some(5678)).unwrap();
    let m = fs::metadata(&path).unwrap();
    assert_eq!((m.uid(), m.gid(), m.mode() & 0o777), (1234, 5678, 0o640));
    let old = SystemTime::UNIX_EPOCH - Duration::from_millis(1200);
    let new = SystemTime::UNIX_EPOCH + Duration::new(5_000_000_000, 123_456_789);
    f.set_times(FileTimes::new().set_accessed(old).set_modified(new)).unwrap();
    let m = fs::metadata(&path).unwrap();
    assert_eq!((m.accessed().unwrap(), m.modified().unwrap()), (old, new));
    // Only statx tells it.
    assert!(m.created().unwrap() > SystemTime::UNIX_EPOCH);
    let s = nix::sys::statvfs::statvfs(r.mounted.path()).unwrap();
    assert_eq!((s.name_max(), s.block_size()), (255, 4096));
    let name = c"user.none";
    let mut value = [0u8; 8];
    // SAFETY: an open descriptor, a name with its end, a buffer of the length that is given.
    let n = unsafe { libc::fgetxattr(f.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    assert_eq!((n, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENODATA)));
    // SAFETY: as above.
    assert_eq!(unsafe { libc::flistxattr(f.as_raw_fd(), value.as_mut_ptr().cast(), value.len()) }, 0);
}

#[test]
fn a_file_without_a_name_gets_one() {
    let r = rig();
    let f = OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(r.mounted.path()).unwrap();
    (&f).write_all(b"hidden").unwrap();
    assert_eq!(fs::read_dir(r.mounted.path()).unwrap().count(), 0);
    let from = format!("/proc/self/fd/{}", f.as_raw_fd());
    nix::unistd::linkat(AT_FDCWD, from.as_str(), AT_FDCWD, &r.path("shown"), nix::fcntl::AtFlags::AT_SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(r.path("shown")).unwrap(), b"hidden");
}

#[test]
fn what_is_unlinked_lives_while_it_is_open_and_goes_after() {
    let fs_ = Arc::new(null());
    let r = Rig::new(fs_.clone(), config());
    let f = OpenOptions::new().read(true).write(true).create_new(true).open(r.path("f")).unwrap();
    fs::create_dir(r.path("d")).unwrap();
    fs::remove_dir(r.path("d")).unwrap();
    fs::remove_file(r.path("f")).unwrap();
    f.write_all_at(b"still here", 0).unwrap();
    assert_eq!(f.metadata().unwrap().nlink(), 0);
    assert!(fs_.nodes() >= 2);
    drop(f);
    // The kernel lets go of it in its own time, after the release that it sends behind the caller's back.
    assert!((0..1_000_000).any(|_| {
        r.statfs();
        fs_.nodes() == 1
    }));
}

#[test]
fn many_callers_are_served_at_once() {
    let r = Rig::new(Arc::new(null()), Config { readers: 3, ..config() });
    assert_eq!(r.session.devices().unwrap().len(), 3);
    std::thread::scope(|s| {
        for t in 0..6 {
            let dir = r.path(&format!("d{t}"));
            s.spawn(move || {
                fs::create_dir(&dir).unwrap();
                for n in 0..100 {
                    let data = format!("{t} {n}").repeat(50);
                    fs::write(dir.join("new"), &data).unwrap();
                    fs::rename(dir.join("new"), dir.join(n.to_string())).unwrap();
                    assert_eq!(fs::read_to_string(dir.join(n.to_string())).unwrap(), data);
                }
                assert_eq!(fs::read_dir(&dir).unwrap().count(), 100);
                fs::remove_dir_all(&dir).unwrap();
            });
        }
    });
    assert_eq!(fs::read_dir(r.mounted.path()).unwrap().count(), 0);
    // A caller has its answer a moment before the request counts as answered.
    r.session.stop();
    assert_eq!(r.session.in_hand(), 0);
}
