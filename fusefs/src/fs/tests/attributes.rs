use hiloop_manifest::schema::{FileKind, Timestamp};
use hiloop_types::{Ino, ROOT_INO, limits};

use super::{Fs, ROOT, USER, code};
use crate::fs::attr::{SetAttr, SetTime, setattr};
use crate::fs::create::New;
use crate::fs::data::{WriteMode, write};
use crate::fs::{Caller, FsResult, acl, xattr};

const NOBODY: u32 = u32::MAX;

fn encoded(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

impl Fs {
    fn set(&self, caller: Caller, ino: Ino, set: SetAttr) -> FsResult<u32> {
        self.change(|tx| setattr(tx, caller, ino, &set)).map(|a| a.mode)
    }
    fn set_xattr(&self, caller: Caller, ino: Ino, name: &str, value: &[u8], flags: i32) -> FsResult<()> {
        self.change(|tx| xattr::set(tx, caller, false, ino, name.as_bytes(), value, flags))
    }
    fn xattr(&self, caller: Caller, ino: Ino, name: &str) -> FsResult<Vec<u8>> {
        self.see(|v| xattr::get(v, caller, ino, name.as_bytes())).map(|b| b.to_vec())
    }
    fn set_id_file(&self, mode: u32) -> Ino {
        let name = format!("s{}", self.attr(ROOT_INO).next_index);
        let ino = self.file(&name);
        self.set(ROOT, ino, SetAttr { uid: Some(1000), gid: Some(1000), ..SetAttr::default() }).unwrap();
        self.set(ROOT, ino, SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
        ino
    }
}

#[test]
fn set_id_bits_go_with_owner_and_content() {
    let fs = Fs::new();
    let owner = SetAttr { uid: Some(1), ..SetAttr::default() };
    let size = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(fs.set(ROOT, fs.set_id_file(0o6777), owner).unwrap(), 0o777, "chown clears them even for root");
    assert_eq!(fs.set(ROOT, fs.set_id_file(0o6767), owner).unwrap(), 0o2767, "without group execute the bit means something else");
    assert_eq!(fs.set(USER, fs.set_id_file(0o6777), size).unwrap(), 0o777);
    assert_eq!(fs.set(ROOT, fs.set_id_file(0o6777), size).unwrap(), 0o6777);
    assert_eq!(fs.set(USER, fs.set_id_file(0o6777), SetAttr::default()).unwrap(), 0o777, "chown(-1, -1)");
    for (kill, left) in [(true, 0o777), (false, 0o6777)] {
        let ino = fs.set_id_file(0o6777);
        fs.change(|tx| write(tx, ino, 0, b"x", WriteMode { kill_suid_sgid: kill, whole: false })).unwrap();
        assert_eq!(fs.attr(ino).mode, left);
    }
    let d = fs.dir("d");
    fs.set(ROOT, d, SetAttr { mode: Some(0o6755), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.set(ROOT, d, owner).unwrap(), 0o6755, "directories keep theirs");
}

#[test]
fn a_file_capability_goes_with_owner_and_size() {
    let fs = Fs::new();
    for set in [SetAttr { gid: Some(5), ..SetAttr::default() }, SetAttr { size: Some(0), ..SetAttr::default() }] {
        let f = fs.set_id_file(0o755);
        fs.set_xattr(ROOT, f, "security.capability", b"caps", 0).unwrap();
        fs.set(ROOT, f, SetAttr { mode: Some(0o700), ..SetAttr::default() }).unwrap();
        assert!(fs.xattr(ROOT, f, "security.capability").is_ok(), "chmod keeps it");
        fs.set(ROOT, f, set).unwrap();
        assert_eq!(code(fs.xattr(ROOT, f, "security.capability")), libc::ENODATA);
    }
}

#[test]
fn below_a_set_group_id_directory_the_group_is_inherited() {
    let fs = Fs::new();
    let d = fs.dir("d");
    fs.set(ROOT, d, SetAttr { gid: Some(77), ..SetAttr::default() }).unwrap();
    fs.set(ROOT, d, SetAttr { mode: Some(0o2777), ..SetAttr::default() }).unwrap();
    let f = fs.try_make(USER, &New::of(FileKind::File, d, b"f", 0o666, 0o027)).unwrap();
    let e = fs.try_make(USER, &New::of(FileKind::Directory, d, b"e", 0o777, 0o027)).unwrap();
    let (f, e) = (fs.attr(f), fs.attr(e));
    assert_eq!((f.uid, f.gid, f.mode), (1000, 77, 0o640));
    assert_eq!((e.uid, e.gid, e.mode), (1000, 77, 0o2750));
}

#[test]
fn an_access_acl_and_the_mode_say_the_same() {
    let fs = Fs::new();
    let f = fs.file("f");
    let list = |mask| encoded(&[(1, 6, NOBODY), (2, 6, 1000), (4, 4, NOBODY), (16, mask, NOBODY), (32, 0, NOBODY)]);
    fs.set_xattr(ROOT, f, "system.posix_acl_access", &list(6), 0).unwrap();
    assert_eq!(fs.attr(f).mode, 0o660);
    fs.set(ROOT, f, SetAttr { mode: Some(0o640), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.xattr(ROOT, f, "system.posix_acl_access").unwrap(), list(4), "chmod moves the mask");
    fs.set_xattr(ROOT, f, "system.posix_acl_access", &encoded(&[(1, 7, NOBODY), (4, 5, NOBODY), (32, 1, NOBODY)]), 0).unwrap();
    assert_eq!(fs.attr(f).mode, 0o751);
    assert_eq!(code(fs.xattr(ROOT, f, "system.posix_acl_access")), libc::ENODATA, "the mode says it all");
    assert_eq!(code(fs.set_xattr(ROOT, f, "system.posix_acl_access", b"junk", 0)), libc::EINVAL);
    assert_eq!(code(fs.set_xattr(ROOT, f, "system.posix_acl_default", &list(7), 0)), libc::EACCES);
}

#[test]
fn an_acl_drops_set_group_id_for_who_is_not_in_the_group() {
    let fs = Fs::new();
    let list = encoded(&[(1, 7, NOBODY), (2, 6, 5), (4, 5, NOBODY), (16, 7, NOBODY), (32, 5, NOBODY)]);
    for (drop_sgid, left) in [(false, 0o2000), (true, 0)] {
        let f = fs.set_id_file(0o2755);
        fs.change(|tx| xattr::set(tx, USER, drop_sgid, f, acl::ACCESS, &list, 0)).unwrap();
        assert_eq!(fs.attr(f).mode & 0o7000, left, "{drop_sgid}");
    }
}

#[test]
fn a_default_acl_takes_the_place_of_the_umask() {
    let fs = Fs::new();
    let d = fs.dir("d");
    let list = encoded(&[(1, 7, NOBODY), (2, 7, 1000), (4, 5, NOBODY), (16, 7, NOBODY), (32, 4, NOBODY)]);
    fs.set_xattr(ROOT, d, "system.posix_acl_default", &list, 0).unwrap();
    let f = fs.try_make(USER, &New::of(FileKind::File, d, b"f", 0o660, 0o077)).unwrap();
    assert_eq!(fs.attr(f).mode, 0o660);
    let limited = encoded(&[(1, 6, NOBODY), (2, 7, 1000), (4, 5, NOBODY), (16, 6, NOBODY), (32, 0, NOBODY)]);
    assert_eq!(fs.xattr(ROOT, f, "system.posix_acl_access").unwrap(), limited);
    assert_eq!(code(fs.xattr(ROOT, f, "system.posix_acl_default")), libc::ENODATA);
    let e = fs.try_make(USER, &New::of(FileKind::Directory, d, b"e", 0o777, 0o077)).unwrap();
    assert_eq!((fs.attr(e).mode, fs.xattr(ROOT, e, "system.posix_acl_default").unwrap()), (0o774, list));
    let l = fs.try_make(USER, &New::symlink(d, b"l", b"x")).unwrap();
    assert_eq!(code(fs.xattr(ROOT, l, "system.posix_acl_access")), libc::ENODATA);
}

#[test]
fn extended_attributes_answer_each_mistake() {
    let fs = Fs::new();
    let f = fs.file("f");
    let l = fs.try_make(ROOT, &New::symlink(ROOT_INO, b"l", b"x")).unwrap();
    assert_eq!(code(fs.xattr(ROOT, f, "user.a")), libc::ENODATA);
    assert_eq!(code(fs.set_xattr(ROOT, f, "user.a", b"1", libc::XATTR_REPLACE)), libc::ENODATA);
    fs.set_xattr(ROOT, f, "user.a", b"", libc::XATTR_CREATE).unwrap();
    assert_eq!(fs.xattr(ROOT, f, "user.a").unwrap(), b"", "an empty value is a value");
    assert_eq!(code(fs.set_xattr(ROOT, f, "user.a", b"1", libc::XATTR_CREATE)), libc::EEXIST);
    assert_eq!(code(fs.set_xattr(ROOT, f, "user.", b"1", 0)), libc::EINVAL);
    assert_eq!(code(fs.set_xattr(ROOT, f, "odd.a", b"1", 0)), libc::EOPNOTSUPP);
    assert_eq!(code(fs.set_xattr(ROOT, f, "system.other", b"1", 0)), libc::EOPNOTSUPP);
    assert_eq!(code(fs.set_xattr(ROOT, l, "user.a", b"1", 0)), libc::EPERM);
    assert_eq!(code(fs.set_xattr(USER, f, "trusted.a", b"1", 0)), libc::EPERM);
    assert_eq!(code(fs.set_xattr(ROOT, f, "user.b", &vec![0; limits::XATTR_VALUE_MAX + 1], 0)), libc::E2BIG);
    fs.set_xattr(ROOT, f, "trusted.a", &vec![1; limits::XATTR_VALUE_MAX], 0).unwrap();
    assert_eq!(code(fs.xattr(USER, f, "trusted.a")), libc::ENODATA);
    assert_eq!(fs.see(|v| xattr::list(v, USER, f)).unwrap(), b"user.a\0");
    assert_eq!(fs.see(|v| xattr::list(v, ROOT, f)).unwrap(), b"trusted.a\0user.a\0");
    assert_eq!(code(fs.change(|tx| xattr::remove(tx, ROOT, f, b"user.b"))), libc::ENODATA);
    fs.change(|tx| xattr::remove(tx, ROOT, f, b"user.a")).unwrap();
    assert_eq!(code(fs.xattr(ROOT, f, "user.a")), libc::ENODATA);
}

#[test]
fn the_list_of_names_never_outgrows_listxattr() {
    let fs = Fs::new();
    let f = fs.file("f");
    let set = |i: usize| fs.set_xattr(ROOT, f, &format!("user.{i:0>250}"), b"", 0);
    let fit = limits::XATTR_LIST_MAX / 256;
    (0..fit).for_each(|i| set(i).unwrap());
    assert_eq!(code(set(fit)), libc::ENOSPC);
    set(0).unwrap();
    assert_eq!(fs.see(|v| xattr::list(v, ROOT, f)).unwrap().len(), fit * 256);
}

#[test]
fn times_are_kept_to_the_nanosecond_before_and_after_1970() {
    let fs = Fs::new();
    let f = fs.file("f");
    let old = Timestamp { secs: -2, nanos: 999_999_999 };
    let far = Timestamp { secs: 1 << 34, nanos: 1 };
    let before = fs.attr(f);
    fs.set(ROOT, f, SetAttr { atime: Some(SetTime::At(old)), mtime: Some(SetTime::At(far)), ..SetAttr::default() }).unwrap();
    let a = fs.attr(f);
    assert_eq!((a.atime, a.mtime), (old, far));
    assert!(a.ctime > before.ctime, "ctime cannot be set back");
    fs.read(f, 0, 1);
    assert_eq!(fs.attr(f).atime, old, "reading leaves atime alone");
    fs.set(ROOT, f, SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }).unwrap();
    let b = fs.attr(f);
    assert_eq!((b.mtime, b.atime), (b.ctime, old));
    assert_eq!(a.btime, b.btime);
}

#[test]
fn truncate_refuses_what_is_no_file_or_too_large() {
    let fs = Fs::new();
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    assert_eq!(code(fs.set(ROOT, fs.dir("d"), size(0))), libc::EISDIR);
    assert_eq!(code(fs.set(ROOT, fs.make(FileKind::Fifo, ROOT_INO, "p"), size(0))), libc::EINVAL);
    let f = fs.file("f");
    assert_eq!(code(fs.set(ROOT, f, size(limits::FILE_MAX + 1))), libc::EFBIG);
    fs.set(ROOT, f, size(limits::FILE_MAX)).unwrap();
    assert_eq!((fs.attr(f).size, fs.attr(f).allocated), (limits::FILE_MAX, 0));
}
