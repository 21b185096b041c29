use hiloop_manifest::schema::FileKind;
use hiloop_types::{Ino, ROOT_INO, limits};

use super::{Fs, ROOT, USER, code};
use crate::fs::create::{New, create, tmpfile};
use crate::fs::link::{link, rmdir, unlink};
use crate::fs::orphan::{Reaped, reap};
use crate::fs::rename::{Place, Renamed, rename};
use crate::fs::{FsResult, again, lookup, xattr};

impl Fs {
    fn rename(&self, from: (Ino, &str), to: (Ino, &str), flags: u32) -> FsResult<Renamed> {
        let from = Place { dir: from.0, name: from.1.as_bytes() };
        let to = Place { dir: to.0, name: to.1.as_bytes() };
        self.change(|tx| rename(tx, ROOT, from, to, flags))
    }
}

#[test]
fn names_of_any_bytes_up_to_255() {
    let fs = Fs::new();
    let longest = [b'n'; 255];
    fs.try_make(ROOT, &New::of(FileKind::File, ROOT_INO, &longest, 0o644, 0)).unwrap();
    fs.try_make(ROOT, &New::of(FileKind::File, ROOT_INO, b"\xff\xfe\n \\", 0o644, 0)).unwrap();
    let too_long = [b'n'; 256];
    assert_eq!(code(fs.try_make(ROOT, &New::of(FileKind::File, ROOT_INO, &too_long, 0o644, 0))), libc::ENAMETOOLONG);
    assert_eq!(code(fs.see(|v| lookup::lookup(v, ROOT_INO, &too_long))), libc::ENAMETOOLONG);
    assert!(fs.see(|v| lookup::lookup(v, ROOT_INO, b"\xff\xfe\n \\")).unwrap().is_some());
}

#[test]
fn a_symbolic_link_is_as_long_as_its_target() {
    let fs = Fs::new();
    let target = vec![b't'; limits::SYMLINK_MAX];
    let ino = fs.try_make(ROOT, &New::symlink(ROOT_INO, b"l", &target)).unwrap();
    assert_eq!(fs.attr(ino).size, target.len() as u64);
    assert_eq!(fs.see(|v| lookup::readlink(v, ino)).unwrap(), target);
    assert_eq!(code(fs.try_make(ROOT, &New::symlink(ROOT_INO, b"m", &[b't'; limits::SYMLINK_MAX + 1]))), libc::ENAMETOOLONG);
    assert_eq!(code(fs.try_make(ROOT, &New::symlink(ROOT_INO, b"m", b""))), libc::ENOENT);
}

#[test]
fn hard_links_count_and_share_the_inode() {
    let fs = Fs::new();
    let (f, d) = (fs.file("f"), fs.dir("d"));
    fs.change(|tx| link(tx, f, d, b"g")).unwrap();
    assert_eq!((fs.attr(f).nlink, fs.find(d, "g")), (2, Some(f)));
    assert_eq!(code(fs.change(|tx| link(tx, f, d, b"g"))), libc::EEXIST);
    assert_eq!(code(fs.change(|tx| link(tx, d, ROOT_INO, b"h"))), libc::EPERM);
    let mut attr = fs.attr(f);
    attr.nlink = limits::LINK_MAX;
    fs.change(|tx| Ok(tx.put_attr(f, attr.clone())?)).unwrap();
    assert_eq!(code(fs.change(|tx| link(tx, f, d, b"h"))), libc::EMLINK);
}

#[test]
fn an_unlinked_file_lives_until_it_is_reaped() {
    let fs = Fs::new();
    let before = fs.ws.totals();
    let f = fs.file("f");
    fs.write(f, 0, &[7; 10_000]).unwrap();
    assert!(fs.unlink("f").unwrap().orphaned);
    assert_eq!(fs.attr(f).nlink, 0);
    assert_eq!(fs.read(f, 0, 3), [7; 3]);
    assert_eq!(fs.ws.totals().bytes, before.bytes + 10_000, "an orphan counts");
    assert_eq!(fs.change(|tx| reap(tx, f)).unwrap(), Reaped::Done);
    assert!(!fs.exists(f));
    assert_eq!(fs.ws.totals(), before);
    assert_eq!(fs.change(|tx| reap(tx, f)).unwrap(), Reaped::Done, "reaping again is harmless");
    let named = fs.file("named");
    fs.change(|tx| reap(tx, named)).unwrap();
    assert!(fs.exists(named), "what has a name is never reaped");
}

#[test]
fn a_nameless_file_goes_unless_it_is_given_a_name() {
    let fs = Fs::new();
    let d = fs.dir("d");
    let before = fs.ws.totals();
    let nameless = |mode| fs.change(|tx| tmpfile(tx, USER, &New::of(FileKind::File, d, b"", mode, 0o022))).unwrap();
    let (goes, stays) = (nameless(0o666), nameless(0o600));
    assert_eq!((goes.attr.nlink, goes.attr.mode, goes.attr.uid), (0, 0o644, 1000));
    assert_eq!(fs.attr(d).entries, 0);
    fs.write(goes.ino, 0, &[7; 10_000]).unwrap();
    assert_eq!(fs.change(|tx| link(tx, stays.ino, d, b"name")).unwrap().attr.nlink, 1);
    for ino in [goes.ino, stays.ino] {
        fs.change(|tx| reap(tx, ino)).unwrap();
    }
    assert_eq!((fs.exists(goes.ino), fs.find(d, "name")), (false, Some(stays.ino)));
    assert_eq!(fs.ws.totals().bytes, before.bytes);
    fs.change(|tx| unlink(tx, d, b"name")).unwrap();
    fs.change(|tx| rmdir(tx, ROOT_INO, b"d")).unwrap();
    assert_eq!(code(fs.change(|tx| tmpfile(tx, USER, &New::of(FileKind::File, d, b"", 0o600, 0)))), libc::ENOENT);
}

#[test]
fn directories_count_their_subdirectories_and_go_only_when_empty() {
    let fs = Fs::new();
    let d = fs.dir("d");
    fs.make(FileKind::Directory, d, "e");
    fs.file("f");
    assert_eq!((fs.attr(d).nlink, fs.attr(ROOT_INO).nlink), (3, 3));
    assert_eq!(code(fs.change(|tx| rmdir(tx, ROOT_INO, b"d"))), libc::ENOTEMPTY);
    assert_eq!(code(fs.change(|tx| rmdir(tx, ROOT_INO, b"f"))), libc::ENOTDIR);
    assert_eq!(code(fs.change(|tx| rmdir(tx, ROOT_INO, b"x"))), libc::ENOENT);
    assert_eq!(code(fs.unlink("d")), libc::EISDIR);
    fs.change(|tx| rmdir(tx, d, b"e")).unwrap();
    fs.change(|tx| rmdir(tx, ROOT_INO, b"d")).unwrap();
    assert_eq!((fs.attr(d).nlink, fs.attr(ROOT_INO).nlink), (0, 2));
    assert_eq!(code(fs.try_make(ROOT, &New::of(FileKind::File, d, b"x", 0o644, 0))), libc::ENOENT, "nothing grows in a removed directory");
}

#[test]
fn rename_follows_the_table_of_types() {
    let fs = Fs::new();
    let (d, full) = (fs.dir("d"), fs.dir("full"));
    fs.make(FileKind::File, full, "x");
    let (f, g) = (fs.file("f"), fs.file("g"));
    assert_eq!(code(fs.rename((ROOT_INO, "f"), (ROOT_INO, "d"), 0)), libc::EISDIR);
    assert_eq!(code(fs.rename((ROOT_INO, "d"), (ROOT_INO, "f"), 0)), libc::ENOTDIR);
    assert_eq!(code(fs.rename((ROOT_INO, "d"), (ROOT_INO, "full"), 0)), libc::ENOTEMPTY);
    assert_eq!(code(fs.rename((ROOT_INO, "none"), (ROOT_INO, "f"), 0)), libc::ENOENT);
    assert_eq!(code(fs.rename((ROOT_INO, "f"), (ROOT_INO, "g"), libc::RENAME_NOREPLACE)), libc::EEXIST);
    assert_eq!(code(fs.rename((ROOT_INO, "f"), (ROOT_INO, "none"), libc::RENAME_EXCHANGE)), libc::ENOENT);
    assert_eq!(code(fs.rename((ROOT_INO, "f"), (ROOT_INO, "g"), libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE)), libc::EINVAL);
    assert_eq!(code(fs.rename((ROOT_INO, "f"), (ROOT_INO, "g"), 1 << 7)), libc::EINVAL);
    let renamed = fs.rename((ROOT_INO, "f"), (ROOT_INO, "g"), 0).unwrap();
    assert_eq!((renamed.moved, renamed.other.map(|o| (o.ino, o.orphaned))), (f, Some((g, true))));
    assert_eq!((fs.find(ROOT_INO, "f"), fs.find(ROOT_INO, "g"), fs.attr(g).nlink), (None, Some(f), 0));
    fs.rename((ROOT_INO, "full"), (ROOT_INO, "d"), 0).unwrap();
    assert_eq!((fs.find(ROOT_INO, "d"), fs.attr(d).nlink, fs.attr(ROOT_INO).nlink), (Some(full), 0, 3));
}

#[test]
fn two_names_of_one_inode_are_left_alone() {
    let fs = Fs::new();
    let f = fs.file("f");
    fs.change(|tx| link(tx, f, ROOT_INO, b"g")).unwrap();
    let before = fs.attr(f);
    fs.rename((ROOT_INO, "f"), (ROOT_INO, "g"), 0).unwrap();
    assert_eq!((fs.find(ROOT_INO, "f"), fs.find(ROOT_INO, "g"), fs.attr(f)), (Some(f), Some(f), before));
}

#[test]
fn a_directory_takes_its_links_along_and_never_moves_into_itself() {
    let fs = Fs::new();
    let (a, b) = (fs.dir("a"), fs.dir("b"));
    let sub = fs.make(FileKind::Directory, a, "sub");
    let deep = fs.make(FileKind::Directory, sub, "deep");
    assert_eq!(code(fs.rename((ROOT_INO, "a"), (deep, "x"), 0)), libc::EINVAL);
    assert_eq!(code(fs.rename((ROOT_INO, "a"), (deep, "x"), libc::RENAME_NOREPLACE)), libc::EINVAL);
    assert_eq!(code(fs.rename((sub, "deep"), (ROOT_INO, "a"), libc::RENAME_EXCHANGE)), libc::EINVAL);
    fs.rename((a, "sub"), (b, "moved"), 0).unwrap();
    assert_eq!((fs.attr(a).nlink, fs.attr(b).nlink, fs.attr(sub).parent), (2, 3, b));
    let f = fs.make(FileKind::File, a, "f");
    fs.rename((b, "moved"), (a, "f"), libc::RENAME_EXCHANGE).unwrap();
    assert_eq!((fs.attr(a).nlink, fs.attr(b).nlink, fs.attr(sub).parent), (3, 2, a));
    assert_eq!((fs.find(a, "f"), fs.find(b, "moved"), fs.attr(a).entries, fs.attr(b).entries), (Some(sub), Some(f), 1, 1));
}

#[test]
fn a_whiteout_is_left_where_overlayfs_wants_one() {
    let fs = Fs::new();
    let f = fs.file("f");
    fs.rename((ROOT_INO, "f"), (ROOT_INO, "g"), libc::RENAME_WHITEOUT).unwrap();
    let left = fs.attr(fs.find(ROOT_INO, "f").unwrap());
    assert_eq!((left.kind, left.rdev, left.mode), (FileKind::CharDevice, 0, 0));
    assert_eq!(fs.find(ROOT_INO, "g"), Some(f));
}

#[test]
fn open_with_creat_takes_what_is_there_unless_exclusive() {
    let fs = Fs::new();
    let f = fs.file("f");
    fs.write(f, 0, b"abc").unwrap();
    fs.dir("d");
    let open = |name: &'static str, flags| {
        let new = New::of(FileKind::File, ROOT_INO, name.as_bytes(), 0o644, 0);
        fs.change(|tx| create(tx, ROOT, &new, flags)).map(|n| (n.ino, n.attr.size))
    };
    assert_eq!(open("f", libc::O_CREAT).unwrap(), (f, 3));
    assert_eq!(code(open("f", libc::O_CREAT | libc::O_EXCL)), libc::EEXIST);
    assert_eq!(open("f", libc::O_CREAT | libc::O_TRUNC).unwrap(), (f, 0));
    assert_eq!(code(open("d", libc::O_CREAT)), libc::EISDIR);
    assert_ne!(open("new", libc::O_CREAT | libc::O_EXCL).unwrap().0, f);
}

#[test]
fn what_is_gone_is_stale_not_missing() {
    let fs = Fs::new();
    let gone = Ino(999_999);
    assert_eq!(code(fs.see(|v| crate::fs::attr::getattr(v, gone))), libc::ESTALE);
    assert_eq!(code(fs.see(|v| lookup::lookup(v, gone, b"x"))), libc::ESTALE);
    assert_eq!(code(fs.change(|tx| link(tx, gone, ROOT_INO, b"x"))), libc::ESTALE);
    let f = fs.file("f");
    assert_eq!(code(fs.see(|v| lookup::lookup(v, f, b"x"))), libc::ENOTDIR);
}

/// After a takeover: a request that was done is answered as it was, one that was not is done.
#[test]
fn what_was_done_is_told_from_what_was_not() {
    let fs = Fs::new();
    let (a, b) = (Place { dir: ROOT_INO, name: b"a" }, Place { dir: ROOT_INO, name: b"b" });
    let new = |name, kind| New::of(kind, ROOT_INO, name, 0o755, 0);
    assert_eq!(fs.change(|tx| again::made(tx, &new(b"a", FileKind::File))).unwrap(), None);
    assert!(fs.change(|tx| again::removed(tx, ROOT_INO, b"a")).unwrap());
    let f = fs.file("a");
    assert_eq!(fs.change(|tx| again::made(tx, &new(b"a", FileKind::File))).unwrap().map(|n| n.ino), Some(f));
    assert_eq!(fs.change(|tx| again::made(tx, &new(b"a", FileKind::Directory))).unwrap(), None, "EEXIST, as before");
    assert!(!fs.change(|tx| again::removed(tx, ROOT_INO, b"a")).unwrap());
    assert_eq!(fs.change(|tx| again::renamed(tx, a, b, 0)).unwrap(), None);
    fs.rename((ROOT_INO, "a"), (ROOT_INO, "b"), 0).unwrap();
    assert_eq!(fs.change(|tx| again::renamed(tx, a, b, libc::RENAME_NOREPLACE)).unwrap().map(|r| r.moved), Some(f));
    for flags in [libc::RENAME_EXCHANGE, libc::RENAME_WHITEOUT] {
        assert_eq!(code(fs.change(|tx| again::renamed(tx, a, b, flags))), libc::EIO);
    }
    assert_eq!(fs.change(|tx| again::linked(tx, f, ROOT_INO, b"c")).unwrap(), None);
    fs.change(|tx| link(tx, f, ROOT_INO, b"c")).unwrap();
    assert_eq!(fs.change(|tx| again::linked(tx, f, ROOT_INO, b"c")).unwrap().map(|n| n.attr.nlink), Some(2));
    assert_eq!(fs.change(|tx| again::linked(tx, ROOT_INO, ROOT_INO, b"c")).unwrap(), None);
    let is = |value: Option<&[u8]>| fs.change(|tx| again::attribute_is(tx, f, b"user.x", value)).unwrap();
    assert!(is(None) && !is(Some(b"v")));
    fs.change(|tx| xattr::set(tx, ROOT, false, f, b"user.x", b"v", 0)).unwrap();
    assert!(is(Some(b"v")) && !is(None));
}
