//! Archives of all formats, beside the tree that they were made of.

use hiloop_source::{SourceKind, SourceLimits, SourceSpec};
use tempfile::TempDir;

use super::directory::make_tree;
use super::support::{
    Outcome, archive, directory, file, gnu_tar, gzip, hard_link, header, padded, pax, read, read_bytes, read_entries, seal, symlink, zstd,
};

fn unpacked(bytes: &[u8]) -> Outcome {
    read_bytes(bytes, &SourceLimits::default()).unwrap()
}

#[test]
fn an_archive_is_the_tree_that_it_was_made_of() {
    let home = TempDir::new().unwrap();
    make_tree(home.path());
    let tree = read(&SourceSpec::Directory(home.path().to_owned())).unwrap();
    let pax = ["--format=posix", "--xattrs", "--xattrs-include=*"];
    for sparse in [&[][..], &["-S", "--sparse-version=0.0"], &["-S", "--sparse-version=0.1"], &["-S", "--sparse-version=1.0"]] {
        let bytes = gnu_tar(home.path(), &[&pax[..], sparse].concat());
        let outcome = unpacked(&bytes);
        assert_eq!(outcome.view(), tree.view(), "{sparse:?}");
        assert_eq!(outcome.inode("sparse").data.is_some(), !sparse.is_empty());
        if sparse.is_empty() {
            assert_eq!(unpacked(&gzip(&bytes)).tree, outcome.tree);
            assert_eq!(unpacked(&zstd(&bytes)).tree, outcome.tree);
            let (start, end) = bytes.split_at(bytes.len() / 2);
            assert_eq!(unpacked(&[gzip(start), gzip(end)].concat()).tree, outcome.tree, "two members");
            assert_eq!(unpacked(&[zstd(start), zstd(end)].concat()).tree, outcome.tree, "two frames");
        }
    }
}

#[test]
fn formats_without_attributes_lose_only_those() {
    let home = TempDir::new().unwrap();
    make_tree(home.path());
    let mut tree = read(&SourceSpec::Directory(home.path().to_owned())).unwrap();
    for inode in &mut tree.tree.inodes {
        inode.xattrs.clear();
        inode.mtime.1 = 0;
    }
    for format in [&["--format=gnu"][..], &["--format=gnu", "-S"], &["--format=ustar", "--exclude=./etc/empty", "--exclude=./nnn*"]] {
        let outcome = unpacked(&gnu_tar(home.path(), format));
        if format[0] == "--format=gnu" {
            assert_eq!(outcome.view(), tree.view(), "{format:?}");
        } else {
            // ustar has no name of 200 bytes and no group of 3 000 000.
            assert_eq!(outcome.tree.nodes.len() + 2, tree.tree.nodes.len());
        }
    }
}

#[test]
fn the_tar_crate_and_raw_headers_agree() {
    let mut builder = tar::Builder::new(Vec::new());
    let mut head = tar::Header::new_gnu();
    head.set_size(2);
    head.set_mode(0o640);
    head.set_mtime(9);
    let long = "x/".repeat(120) + "file";
    builder.append_data(&mut head, &long, &b"hi"[..]).unwrap();
    let outcome = unpacked(&builder.into_inner().unwrap());
    assert_eq!((outcome.text(&long).as_str(), outcome.inode(&long).mode, outcome.inode(&long).mtime), ("hi", 0o640, (9, 0)));
    let mut prefixed = header(b"file", b'0', 0, b"");
    prefixed[345..350].copy_from_slice(b"a/b/c");
    seal(&mut prefixed);
    assert_eq!(read_entries(&[prefixed]).unwrap().paths(), ["", "a", "a/b", "a/b/c", "a/b/c/file"]);
}

#[test]
fn names_are_normalised_and_missing_parents_made() {
    let mut root = directory("./");
    root[100..107].copy_from_slice(b"0000700");
    seal(&mut root);
    let mut v7 = header(b"old/", 0, 0, b"");
    v7[257..265].fill(0);
    seal(&mut v7);
    let outcome = read_entries(&[root, file("./a", b"1"), directory("b/"), file("b//./c", b"2"), file("d/e/f", b"3"), v7]).unwrap();
    assert_eq!(outcome.paths(), ["", "a", "b", "d", "old", "b/c", "d/e", "d/e/f"]);
    assert_eq!(outcome.inode("").mode, 0o700);
    let made = outcome.inode("d/e");
    assert_eq!((made.mode, made.uid, made.gid, made.mtime), (0o755, 0, 0, (0, 0)));
    assert_eq!(outcome.inode("old").kind, SourceKind::Directory);
}

#[test]
fn a_later_entry_wins() {
    let mut closed = directory("dir");
    closed[100..107].copy_from_slice(b"0000500");
    seal(&mut closed);
    let outcome = read_entries(&[
        file("twice", b"first"),
        file("twice", b"second"),
        directory("dir"),
        file("dir/kept", b"kept"),
        closed,
        directory("gone"),
        file("gone/inside", b"x"),
        symlink("gone", "elsewhere"),
        symlink("grown", "elsewhere"),
        directory("grown"),
        file("one", b"one"),
        hard_link("two", "./one"),
        hard_link("two", "two"),
        file("one", b"new"),
    ])
    .unwrap();
    assert_eq!(outcome.paths(), ["", "dir", "gone", "grown", "one", "twice", "two", "dir/kept"]);
    assert_eq!(outcome.text("twice"), "second");
    assert_eq!(outcome.inode("dir").mode, 0o500);
    assert_eq!(outcome.inode("gone").kind, SourceKind::Symlink);
    assert_eq!(outcome.inode("grown").kind, SourceKind::Directory);
    assert_eq!((outcome.text("one").as_str(), outcome.text("two").as_str()), ("new", "one"));
    assert_eq!((outcome.inode("one").nlink, outcome.inode("two").nlink), (1, 1));
}

#[test]
fn pax_records_stand_over_the_header_and_under_nothing() {
    let records: &[(&str, &[u8])] = &[
        ("path", b"real/name"),
        ("size", b"3"),
        ("uid", b"4000000000"),
        ("gid", b"5"),
        ("mtime", b"-1.5"),
        ("SCHILY.xattr.user.a", b"=\n="),
        ("SCHILY.xattr.security.selinux", b"label"),
        ("SCHILY.acl.access", b"user::rw-\ngroup::r--\nother::r--\n"),
        ("comment", b"ignored"),
    ];
    let mut head = header(b"short", b'0', 0, b"");
    head[124..135].copy_from_slice(b"00000000000");
    seal(&mut head);
    let global = pax(b'g', &[("gid", b"77"), ("uid", b"66")]);
    let outcome = read_entries(&[global, pax(b'x', records), head, padded(b"abc"), file("plain", b"p")]).unwrap();
    let inode = outcome.inode("real/name");
    assert_eq!((inode.uid, inode.gid, inode.mtime, inode.size), (4_000_000_000, 5, (-2, 500_000_000), 3));
    assert_eq!(inode.xattrs.keys().collect::<Vec<_>>(), [b"user.a"]);
    assert_eq!(outcome.text("real/name"), "abc");
    assert_eq!((outcome.inode("plain").uid, outcome.inode("plain").gid), (66, 77));
    assert!(outcome.inode("plain").xattrs.is_empty());
}

#[test]
fn an_archive_without_its_end_is_refused_and_what_follows_the_end_ignored() {
    let bytes = [archive(&[file("a", b"1")]), b"anything".to_vec()].concat();
    assert_eq!(unpacked(&bytes).paths(), ["", "a"]);
    let cut = read_bytes(&file("a", b"1"), &SourceLimits::default());
    assert!(cut.is_err());
    assert_eq!(unpacked(&archive(&[])).paths(), [""]);
    assert_eq!(unpacked(&archive(&[pax(b'g', &[("comment", b"an empty tree")])])).paths(), [""]);
}
