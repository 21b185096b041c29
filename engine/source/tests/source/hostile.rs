//! Archives that mean harm, and archives that are noise.

use hiloop_source::SourceLimits;
use hiloop_types::ErrorKind::{self, Corrupt, Exhausted, Invalid};
use proptest::prelude::*;

use super::support::{
    archive, directory, file, gzip, hard_link, header, padded, pax, read_bytes, read_entries, refused, seal, symlink, zstd,
};

#[test]
fn what_leaves_the_tree_or_breaks_the_rules_is_refused_by_name() {
    let long = "n".repeat(256);
    let sparse = |map: &'static [u8], real: &'static [u8]| pax(b'x', &[("GNU.sparse.map", map), ("GNU.sparse.realsize", real)]);
    let device = |major: &[u8; 7]| {
        let mut block = header(b"dev", b'3', 0, b"");
        block[329..336].copy_from_slice(major);
        block[337..344].copy_from_slice(b"0000001");
        seal(&mut block);
        block
    };
    let field = |at: usize, text: &[u8]| {
        let mut block = header(b"field", b'0', 0, b"");
        block[at..at + text.len()].copy_from_slice(text);
        seal(&mut block);
        block
    };
    let cases: Vec<(&str, Vec<Vec<u8>>, ErrorKind)> = vec![
        ("/etc/passwd", vec![file("/etc/passwd", b"")], Invalid),
        ("a/../../b", vec![file("a/../../b", b"")], Invalid),
        ("..", vec![directory("..")], Invalid),
        ("no name", vec![file("", b"")], Invalid),
        ("link", vec![symlink("link", "/etc"), file("link/passwd", b"")], Invalid),
        ("link", vec![symlink("link", "/etc"), hard_link("stolen", "link/passwd")], Invalid),
        ("plain", vec![file("plain", b""), file("plain/below", b"")], Invalid),
        ("stolen", vec![hard_link("stolen", "/etc/passwd")], Invalid),
        ("stolen", vec![hard_link("stolen", "../passwd")], Invalid),
        ("missing", vec![hard_link("name", "missing")], Invalid),
        ("later", vec![hard_link("name", "later"), file("later", b"")], Invalid),
        ("hard link to a directory", vec![directory("dir"), hard_link("name", "dir")], Invalid),
        ("hard link to a directory", vec![hard_link("name", ".")], Invalid),
        ("root", vec![file("./", b""), symlink(".", "x")], Invalid),
        ("root", vec![hard_link(".", "x")], Invalid),
        ("nnn", vec![pax(b'x', &[("path", long.as_bytes())]), file("x", b"")], Invalid),
        ("zero byte", vec![pax(b'x', &[("path", b"a\0b")]), file("x", b"")], Invalid),
        ("target", vec![symlink("link", "")], Invalid),
        ("target", vec![pax(b'x', &[("linkpath", "t".repeat(4096).as_bytes())]), symlink("link", "x")], Invalid),
        ("type `Z`", vec![header(b"odd", b'Z', 0, b"")], Invalid),
        ("type `M`", vec![header(b"multi", b'M', 0, b"")], Invalid),
        ("4096:1", vec![device(b"0010000")], Invalid),
        ("4294967295", vec![pax(b'x', &[("uid", b"4294967295")]), file("x", b"")], Invalid),
        ("access control", vec![pax(b'x', &[("SCHILY.acl.access", b"user::rw-\nuser:7:rwx")]), file("x", b"")], Invalid),
        ("size", vec![field(124, b"0000000009\0")], Corrupt),
        ("size", vec![field(124, &[0xff; 12])], Corrupt),
        ("mode", vec![field(100, b"rwxr-xr")], Corrupt),
        ("time", vec![pax(b'x', &[("mtime", b"noon")]), file("x", b"")], Corrupt),
        ("field", vec![field(124, &[0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])], Exhausted),
        ("pax", vec![header(b"p", b'x', 5, b""), padded(b"99 a=")], Corrupt),
        ("after an extension", vec![pax(b'x', &[("path", b"a")])], Corrupt),
        ("overlap", vec![sparse(b"0,4,2,4", b"100"), file("s", &[1; 8])], Corrupt),
        ("behind the file", vec![sparse(b"96,8", b"100"), file("s", &[1; 8])], Corrupt),
        ("behind the file", vec![sparse(b"18446744073709551615,8", b"100"), file("s", &[1; 8])], Corrupt),
        ("add up", vec![sparse(b"0,4", b"100"), file("s", &[1; 8])], Corrupt),
        ("without a length", vec![sparse(b"0,8,9", b"100"), file("s", &[1; 8])], Corrupt),
        ("allowed", vec![sparse(b"0,8", b"18446744073709551615"), file("s", &[1; 8])], Exhausted),
        ("xattr", vec![pax(b'x', &[("SCHILY.xattr.user.xattr", &[1; 65_537])]), file("xattr", b"")], Exhausted),
    ];
    for (text, entries, kind) in cases {
        let error = refused(read_entries(&entries));
        assert_eq!(error.kind(), kind, "{text}: {error}");
        assert!(error.to_string().contains(text), "{text}: {error}");
    }
}

#[test]
fn other_files_are_told_from_archives() {
    let limits = SourceLimits::default();
    for (bytes, kind) in [
        (&b""[..], Corrupt),
        (b"short", Corrupt),
        (&[b'x'; 4096], Corrupt),
        (b"\xfd7zXZ\0............", Invalid),
        (b"BZh91AY&SY", Invalid),
        (b"\x1f\x8b\x08\0garbage", Corrupt),
        (b"\x28\xb5\x2f\xfdgarbage", Corrupt),
    ] {
        let error = refused(read_bytes(bytes, &limits));
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[test]
fn limits_hold_for_archives() {
    let base = SourceLimits::default();
    let deep = "d/".repeat(20) + "f";
    let zeros = archive(&[file("zeros", &vec![0; 3 << 20])]);
    let cases: Vec<(&str, SourceLimits, Vec<u8>)> = vec![
        ("`entries` of 2", SourceLimits { entries: 2, ..base.clone() }, archive(&[file("a", b""), file("a", b""), file("a", b"")])),
        ("`entries` of 5", SourceLimits { entries: 5, ..base.clone() }, archive(&[file(&deep, b"")])),
        ("`depth` of 20", SourceLimits { depth: 20, ..base.clone() }, archive(&[file(&deep, b"")])),
        ("`bytes` of 4096", SourceLimits { bytes: 4096, ..base.clone() }, zeros.clone()),
        ("`bytes` of 4096", SourceLimits { bytes: 4096, ..base.clone() }, gzip(&archive(&vec![file("a", b"x"); 100]))),
        ("`expansion` of 50", SourceLimits { expansion: 50, expansion_free: 1 << 20, ..base.clone() }, gzip(&zeros)),
        ("`expansion` of 50", SourceLimits { expansion: 50, expansion_free: 1 << 20, ..base.clone() }, zstd(&zeros)),
        (
            "`metadata_bytes` of 100000",
            SourceLimits { metadata_bytes: 100_000, ..base.clone() },
            archive(&vec![[pax(b'x', &[("SCHILY.xattr.user.a", &[1; 60_000])]), file("a", b"")].concat(); 2]),
        ),
        ("`extension header`", base.clone(), header(b"x", b'x', 4 << 30, b"")),
        ("`extension headers of an entry`", base.clone(), archive(&vec![pax(b'g', &[("comment", b"c")]); 40])),
    ];
    for (text, limits, bytes) in cases {
        let error = refused(read_bytes(&bytes, &limits));
        assert!(error.kind() == Exhausted && error.to_string().contains(text), "{text}: {error}");
    }
    let free = SourceLimits { expansion: 50, expansion_free: 4 << 20, ..base };
    assert!(read_bytes(&zstd(&zeros), &free).is_ok(), "below the free amount any ratio is good");
}

#[test]
fn an_archive_cut_anywhere_is_refused() {
    let bytes = archive(&[
        pax(b'x', &[("mtime", b"1.5")]),
        file("a", &[1; 700]),
        directory("d"),
        symlink("d/l", "a"),
        pax(b'x', &[("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"9000"), ("GNU.sparse.name", b"s")]),
        file("GNUSparseFile.0/s", &[padded(b"1\n4096\n10\n"), b"0123456789".to_vec()].concat()),
    ]);
    let limits = SourceLimits::default();
    let whole = read_bytes(&bytes, &limits).unwrap();
    assert_eq!((whole.paths(), whole.inode("s").size), (["", "a", "d", "s", "d/l"].map(str::to_owned).to_vec(), 9000));
    let end = bytes.len() - 1024;
    for cut in (0..end).step_by(64) {
        assert_eq!(refused(read_bytes(&bytes[..cut], &limits)).kind(), Corrupt, "cut at {cut}");
    }
    for packed in [gzip(&bytes), zstd(&bytes)] {
        for cut in (0..packed.len()).step_by(7) {
            assert_eq!(refused(read_bytes(&packed[..cut], &limits)).kind(), Corrupt, "cut at {cut} of {}", packed.len());
        }
    }
}

/// Tight enough that a case ends at once.
fn tight() -> SourceLimits {
    SourceLimits { entries: 64, bytes: 1 << 20, depth: 16, metadata_bytes: 1 << 18, ..SourceLimits::default() }
}

fn bounded(bytes: &[u8]) {
    if let Ok(outcome) = read_bytes(bytes, &tight()) {
        assert!(outcome.tree.nodes.len() <= 65);
        assert!(outcome.sink.contents.iter().map(Vec::len).sum::<usize>() <= 1 << 20);
    }
}

fn entry() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![Just("a"), Just("b/"), Just("a/b"), Just("../x"), Just("."), Just("a/b/c"), Just("/r")];
    let flag = prop_oneof![
        Just(b'0'),
        Just(b'1'),
        Just(b'2'),
        Just(b'3'),
        Just(b'5'),
        Just(b'6'),
        Just(b'S'),
        Just(b'x'),
        Just(b'L'),
        any::<u8>()
    ];
    let damage = proptest::collection::vec((0..512_usize, any::<u8>()), 0..3);
    (name, flag, proptest::collection::vec(any::<u8>(), 0..1200), "[a-c/.]{0,6}", damage).prop_map(|(name, flag, body, link, damage)| {
        let mut block = header(name.as_bytes(), flag, body.len() as u64, link.as_bytes());
        for (at, byte) in damage {
            block[at] = byte;
        }
        seal(&mut block);
        [block, padded(&body)].concat()
    })
}

fn records() -> impl Strategy<Value = Vec<u8>> {
    let key = prop_oneof![
        Just("path"),
        Just("size"),
        Just("mtime"),
        Just("GNU.sparse.map"),
        Just("GNU.sparse.major"),
        Just("GNU.sparse.minor"),
        Just("GNU.sparse.realsize"),
        Just("GNU.sparse.offset"),
        Just("GNU.sparse.numbytes"),
        Just("SCHILY.xattr.user.x"),
    ];
    proptest::collection::vec((key, "[0-9,./a-]{0,12}"), 0..4).prop_map(|records| {
        let records: Vec<(&str, &[u8])> = records.iter().map(|(key, value)| (*key, value.as_bytes())).collect();
        pax(b'x', &records)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn noise_is_bounded(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        bounded(&bytes);
    }

    #[test]
    fn damaged_entries_are_bounded(entries in proptest::collection::vec(prop_oneof![entry(), records()], 0..8)) {
        bounded(&archive(&entries));
    }

    #[test]
    fn damaged_packings_are_bounded(
        entries in proptest::collection::vec(entry(), 0..4),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        gz in any::<bool>(),
    ) {
        let mut packed = if gz { gzip(&archive(&entries)) } else { zstd(&archive(&entries)) };
        for (at, byte) in damage {
            let at = at.index(packed.len());
            packed[at] = byte;
        }
        bounded(&packed);
    }
}
