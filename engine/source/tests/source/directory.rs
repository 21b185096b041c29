//! Real trees.

use std::ffi::CString;
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use hiloop_source::{Content, ContentSink, Shape, SourceKind, SourceLimits, SourceSpec};
use hiloop_types::{ErrorKind, Result};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use tempfile::TempDir;

use super::support::{Recorder, is_root, read, read_with, refused};

pub fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let name = CString::new(name).unwrap();
    // SAFETY: both strings end in a zero byte, `value` is readable for its length, and all outlive the call.
    let done = unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

pub fn set_mtime(path: &Path, seconds: u64, nanos: u32) {
    let time = UNIX_EPOCH + Duration::new(seconds, nanos);
    File::open(path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
}

/// A tree with every kind that an archive can hold.
pub fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("etc/deep/er")).unwrap();
    fs::write(root.join("etc/passwd"), "root:x:0:0").unwrap();
    fs::write(root.join("etc/empty"), "").unwrap();
    fs::write(root.join("etc/deep/er/tool"), vec![7; 100_000]).unwrap();
    fs::set_permissions(root.join("etc/deep/er/tool"), Permissions::from_mode(0o4755)).unwrap();
    fs::hard_link(root.join("etc/deep/er/tool"), root.join("another name")).unwrap();
    symlink("../outside", root.join("etc/link")).unwrap();
    fs::write(root.join("n".repeat(200)), "long").unwrap();
    nix::unistd::mkfifo(&root.join("fifo"), Mode::from_bits_truncate(0o620)).unwrap();
    set_xattr(&root.join("etc/passwd"), "user.note", b"a\0b");
    set_xattr(&root.join("etc/deep"), "user.dir", b"");
    if is_root() {
        set_xattr(&root.join("etc/link"), "trusted.on-link", b"yes");
        let mode = Mode::from_bits_truncate(0o600);
        mknod(&root.join("char"), SFlag::S_IFCHR, mode, makedev(10, 0x12345)).unwrap();
        mknod(&root.join("block"), SFlag::S_IFBLK, mode, makedev(259, 3)).unwrap();
        std::os::unix::fs::chown(root.join("etc/empty"), Some(1234), Some(3_000_000)).unwrap();
    }
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(40 << 20).unwrap();
    for at in [1_u64 << 20, 9 << 20, 20 << 20, 21 << 20, 33 << 20, 35 << 20] {
        sparse.write_all_at(&[at as u8 + 1; 5000], at).unwrap();
    }
    sparse.sync_all().unwrap();
    set_mtime(&root.join("etc/passwd"), 1_600_000_000, 123_456_789);
    set_mtime(&root.join("etc/deep/er"), 5, 0);
}

#[test]
fn every_kind_is_described_and_ordered_breadth_first() {
    let home = TempDir::new().unwrap();
    make_tree(home.path());
    let _socket = UnixListener::bind(home.path().join("socket")).unwrap();
    let outcome = read(&SourceSpec::Directory(home.path().to_owned())).unwrap();

    let long = "n".repeat(200);
    let mut top = vec!["another name", "etc", "fifo", &long, "socket", "sparse"];
    if is_root() {
        top.splice(1..1, ["block", "char"]);
    }
    let below = ["etc/deep", "etc/empty", "etc/link", "etc/passwd", "etc/deep/er", "etc/deep/er/tool"];
    assert_eq!(outcome.paths(), [&[""][..], &top, &below].concat());

    let tool = outcome.inode("etc/deep/er/tool");
    assert_eq!((tool.kind, tool.mode, tool.nlink, tool.size), (SourceKind::File, 0o4755, 2, 100_000));
    assert_eq!(
        outcome.tree.nodes[outcome.node("another name").unwrap()].inode,
        outcome.tree.nodes[outcome.node("etc/deep/er/tool").unwrap()].inode
    );
    assert_eq!(outcome.sink.paths.iter().filter(|p| p.ends_with("tool") || p.ends_with("another name")).count(), 1);
    let passwd = outcome.inode("etc/passwd");
    assert_eq!(passwd.mtime, (1_600_000_000, 123_456_789));
    assert_eq!(passwd.xattrs.get(&b"user.note"[..]).map(Vec::as_slice), Some(&b"a\0b"[..]));
    assert_eq!(outcome.text("etc/passwd"), "root:x:0:0");
    assert_eq!(outcome.inode("etc/deep").xattrs.len(), 1);
    let link = outcome.inode("etc/link");
    assert_eq!((link.kind, link.target.as_slice(), link.size), (SourceKind::Symlink, &b"../outside"[..], 10));
    assert_eq!(outcome.inode("fifo").kind, SourceKind::Fifo);
    assert_eq!(outcome.inode("socket").kind, SourceKind::Socket);
    assert_eq!(outcome.inode("etc/empty").content.unwrap().size, 0);
    if is_root() {
        assert_eq!(link.xattrs.len(), 1, "read from the link itself, not through it");
        assert_eq!((outcome.inode("char").kind, outcome.inode("char").rdev), (SourceKind::CharDevice, makedev(10, 0x12345)));
        assert_eq!((outcome.inode("block").kind, outcome.inode("block").rdev), (SourceKind::BlockDevice, makedev(259, 3)));
        assert_eq!((outcome.inode("etc/empty").uid, outcome.inode("etc/empty").gid), (1234, 3_000_000));
    }
    let sparse = outcome.inode("sparse");
    assert!(sparse.content.unwrap().size < 1 << 20, "holes are not read: {:?}", sparse.data);
    assert_eq!(outcome.bytes(sparse), fs::read(home.path().join("sparse")).unwrap());
}

#[test]
fn the_order_of_making_does_not_show() {
    let names: Vec<String> = (0..50).map(|i| format!("{}/{}", i % 5, i * 7919 % 1000)).collect();
    let make = |reverse: bool| {
        let home = TempDir::new().unwrap();
        let mut order = names.clone();
        if reverse {
            order.reverse();
        }
        for name in &order {
            let path = home.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, name).unwrap();
        }
        for name in &names {
            set_mtime(&home.path().join(name), 1, 0);
        }
        for path in (0..5).map(|i| home.path().join(i.to_string())).chain([home.path().to_owned()]) {
            set_mtime(&path, 2, 0);
        }
        home
    };
    let (one, two) = (make(false), make(true));
    let read_dir = |home: &TempDir| read(&SourceSpec::Directory(home.path().to_owned())).unwrap();
    let (first, again, other) = (read_dir(&one), read_dir(&one), read_dir(&two));
    assert_eq!(first.tree, again.tree);
    assert_eq!(first.tree, other.tree);
    assert_eq!(first.sink.contents, other.sink.contents);
}

#[test]
fn a_tree_deeper_than_the_open_directories_is_read_whole() {
    let home = TempDir::new().unwrap();
    let mut path = home.path().to_owned();
    for _ in 0..300 {
        path.push("d");
    }
    fs::create_dir_all(&path).unwrap();
    // Names that sort behind the way down, so that they are met on the way up.
    for (depth, up) in path.ancestors().take(301).enumerate() {
        fs::write(up.join("z"), format!("{}", 300 - depth)).unwrap();
    }
    let outcome = read(&SourceSpec::Directory(home.path().to_owned())).unwrap();
    assert_eq!(outcome.tree.nodes.len(), 1 + 300 + 301);
    for depth in 0..=300 {
        assert_eq!(outcome.text(&("d/".repeat(depth) + "z")), depth.to_string());
    }
}

#[test]
fn limits_end_the_walk_and_are_named() {
    let home = TempDir::new().unwrap();
    fs::create_dir_all(home.path().join("a/b/c")).unwrap();
    fs::write(home.path().join("a/b/c/file"), [1; 100]).unwrap();
    let spec = SourceSpec::Directory(home.path().to_owned());
    let limits = SourceLimits::default();
    for (tight, name, place) in [
        (SourceLimits { depth: 3, ..limits.clone() }, "`depth` of 3", "a/b/c/file"),
        (SourceLimits { entries: 3, ..limits.clone() }, "`entries` of 3", "a/b/c"),
        (SourceLimits { bytes: 99, ..limits.clone() }, "`bytes` of 99", "a/b/c/file"),
        (SourceLimits { metadata_bytes: 2000, ..limits.clone() }, "`metadata_bytes` of 2000", "a/b/c"),
    ] {
        let error = refused(read_with(&spec, &tight));
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert!(error.to_string().contains(name) && error.to_string().contains(place), "{error}");
    }
    let exact = SourceLimits { depth: 4, entries: 5, bytes: 100, ..limits };
    assert_eq!(read_with(&spec, &exact).unwrap().tree.nodes.len(), 5);
    let endless = SourceLimits { depth: hiloop_source::DEPTH_MAX + 1, ..exact };
    assert_eq!(refused(read_with(&spec, &endless)).kind(), ErrorKind::Invalid);
}

/// Appends to the file that it is given, so many times.
struct Meddler {
    file: PathBuf,
    times: usize,
    inner: Recorder,
}

impl ContentSink for Meddler {
    fn content(&mut self, path: &Path, shape: Shape<'_>, reader: &mut dyn Read) -> Result<Content> {
        if self.times > 0 {
            self.times -= 1;
            OpenOptions::new().append(true).open(&self.file).unwrap().write_all(b"+").unwrap();
        }
        self.inner.content(path, shape, reader)
    }
}

#[test]
fn a_file_that_changes_is_read_again_then_refused() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("busy");
    fs::write(&file, "start").unwrap();
    let spec = SourceSpec::Directory(home.path().to_owned());
    let run = |times| {
        let mut sink = Meddler { file: file.clone(), times, inner: Recorder::default() };
        let result = hiloop_source::read(&spec, &mut sink, &SourceLimits::default(), &mut |_| ());
        (result, sink.inner)
    };
    let (tree, sink) = run(2);
    let content = tree.unwrap().inodes[1].content.unwrap();
    assert_eq!((content.handle, sink.contents[2].as_slice()), (2, &b"start++"[..]));
    let (result, sink) = run(3);
    let error = result.unwrap_err();
    assert_eq!((error.kind(), sink.contents.len()), (ErrorKind::Conflict, 3));
    assert!(error.to_string().contains("busy"), "{error}");
}

#[test]
fn a_file_cut_while_it_is_read_is_read_again() {
    struct Cutter(PathBuf, usize);
    impl ContentSink for Cutter {
        fn content(&mut self, _: &Path, _: Shape<'_>, reader: &mut dyn Read) -> Result<Content> {
            self.1 += 1;
            if self.1 == 1 {
                fs::write(&self.0, "x").unwrap();
            }
            let mut bytes = Vec::new();
            let size = reader.read_to_end(&mut bytes).unwrap() as u64;
            Ok(Content { handle: 0, size })
        }
    }
    let home = TempDir::new().unwrap();
    let file = home.path().join("shrinking");
    fs::write(&file, "longer").unwrap();
    let mut sink = Cutter(file, 0);
    let tree =
        hiloop_source::read(&SourceSpec::Directory(home.path().to_owned()), &mut sink, &SourceLimits::default(), &mut |_| ()).unwrap();
    assert_eq!((sink.1, tree.inodes[1].size), (2, 1));
}

#[test]
fn a_sink_that_does_not_read_to_the_end_is_a_defect() {
    struct Lazy;
    impl ContentSink for Lazy {
        fn content(&mut self, _: &Path, shape: Shape<'_>, _: &mut dyn Read) -> Result<Content> {
            Ok(Content { handle: 0, size: shape.size })
        }
    }
    let home = TempDir::new().unwrap();
    fs::write(home.path().join("file"), "bytes").unwrap();
    let spec = SourceSpec::Directory(home.path().to_owned());
    let error = hiloop_source::read(&spec, &mut Lazy, &SourceLimits::default(), &mut |_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
}

#[test]
fn arguments_are_told_apart() {
    let home = TempDir::new().unwrap();
    let path = home.path().to_str().unwrap().to_owned();
    assert_eq!(SourceSpec::detect("-").unwrap(), SourceSpec::Stdin);
    assert_eq!(SourceSpec::detect(&path).unwrap(), SourceSpec::Directory(home.path().to_owned()));
    fs::write(home.path().join("oci-layout"), "{}").unwrap();
    assert_eq!(SourceSpec::detect(&path).unwrap(), SourceSpec::Directory(home.path().to_owned()));
    fs::write(home.path().join("index.json"), "{}").unwrap();
    assert_eq!(SourceSpec::detect(&path).unwrap(), SourceSpec::OciLayout(home.path().to_owned()));
    let tar = home.path().join("index.json");
    assert_eq!(SourceSpec::detect(tar.to_str().unwrap()).unwrap(), SourceSpec::Tar(tar));
    assert_eq!(SourceSpec::detect("").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(SourceSpec::detect("/no/such/thing").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(refused(read(&SourceSpec::Directory("/no/such/thing".into()))).kind(), ErrorKind::NotFound);
}
