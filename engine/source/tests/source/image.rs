//! OCI image layouts.

use std::fs;
use std::path::Path;

use hiloop_source::{SourceKind, SourceSpec};
use hiloop_types::{ErrorKind, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::support::{Outcome, archive, directory, file, gzip, hard_link, read, refused, seal, symlink, zstd};

const TAR: &str = "application/vnd.oci.image.layer.v1.tar";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

fn blob(root: &Path, media_type: &str, bytes: &[u8]) -> Value {
    let hex: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
    fs::write(root.join("blobs/sha256").join(&hex), bytes).unwrap();
    json!({"mediaType": media_type, "digest": format!("sha256:{hex}"), "size": bytes.len()})
}

fn layout() -> TempDir {
    let home = TempDir::new().unwrap();
    fs::create_dir_all(home.path().join("blobs/sha256")).unwrap();
    fs::write(home.path().join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
    home
}

fn index(home: &TempDir, manifests: &[Value]) {
    fs::write(home.path().join("index.json"), json!({"schemaVersion": 2, "manifests": manifests}).to_string()).unwrap();
}

fn manifest(home: &TempDir, layers: &[Value]) -> Value {
    blob(home.path(), MANIFEST, json!({"schemaVersion": 2, "layers": layers}).to_string().as_bytes())
}

/// A manifest whose only layer is one file.
fn image_of(home: &TempDir, name: &str, os: &str, architecture: &str) -> Value {
    let layer = blob(home.path(), TAR, &archive(&[file(name, b"")]));
    let mut descriptor = manifest(home, &[layer]);
    descriptor["platform"] = json!({"os": os, "architecture": architecture});
    descriptor
}

fn open(home: &TempDir) -> Result<Outcome> {
    let spec = SourceSpec::detect(home.path().to_str().unwrap())?;
    assert!(matches!(spec, SourceSpec::OciLayout(_)));
    read(&spec)
}

fn image(layers: &[Vec<Vec<u8>>]) -> Result<Outcome> {
    let home = layout();
    let layers: Vec<Value> = layers.iter().map(|entries| blob(home.path(), TAR, &archive(entries))).collect();
    index(&home, &[manifest(&home, &layers)]);
    open(&home)
}

#[test]
fn layers_of_all_packings_are_applied_in_order() {
    let home = layout();
    let one = archive(&[file("a", b"one"), file("b", b"one"), directory("d"), file("d/x", b"x")]);
    let two = archive(&[file("a", b"two"), file("c", b"two")]);
    let three = archive(&[hard_link("linked", "b"), symlink("s", "c")]);
    // A layer without an end marker: its digest says that it is whole.
    let four = file("end", b"");
    let layers = [
        blob(home.path(), &format!("{TAR}+gzip"), &gzip(&one)),
        blob(home.path(), &format!("{TAR}+zstd"), &zstd(&two)),
        blob(home.path(), "application/vnd.docker.image.rootfs.diff.tar.gzip", &gzip(&three)),
        blob(home.path(), TAR, &four),
    ];
    index(&home, &[manifest(&home, &layers)]);
    let outcome = open(&home).unwrap();
    assert_eq!(outcome.paths(), ["", "a", "b", "c", "d", "end", "linked", "s", "d/x"]);
    assert_eq!((outcome.text("a").as_str(), outcome.text("linked").as_str()), ("two", "one"));
    assert_eq!(outcome.inode("b").nlink, 2, "a hard link into a lower layer");
    assert_eq!(open(&home).unwrap().tree, outcome.tree);
}

#[test]
fn whiteouts_delete_what_lower_layers_put_there_only() {
    let lower = || {
        let mut closed = directory("dir");
        closed[100..107].copy_from_slice(b"0000700");
        seal(&mut closed);
        vec![closed, file("dir/old", b"old"), directory("dir/sub"), file("dir/sub/deep", b""), file("gone", b""), file("both", b"lower")]
    };
    let paths = |upper: Vec<Vec<u8>>| image(&[lower(), upper]).unwrap().paths();

    assert_eq!(paths(vec![file(".wh.gone", b""), file("dir/.wh.old", b"")]), ["", "both", "dir", "dir/sub", "dir/sub/deep"]);
    assert_eq!(paths(vec![file(".wh.dir", b"")]), ["", "both", "gone"]);
    assert_eq!(
        paths(vec![file(".wh.nothing", b""), file("no/such/.wh.dir", b"")]),
        ["", "both", "dir", "gone", "dir/old", "dir/sub", "dir/sub/deep"]
    );
    // The same layer's own entries stay, before and behind the mark.
    for upper in [
        vec![file("dir/.wh..wh..opq", b""), file("dir/new", b"")],
        vec![file("dir/new", b""), file("dir/.wh..wh..opq", b"")],
        vec![file(".wh.dir", b""), file("dir/new", b"")],
        vec![file("dir/new", b""), file(".wh.dir", b"")],
    ] {
        assert_eq!(paths(upper), ["", "both", "dir", "gone", "dir/new"]);
    }
    for upper in [vec![file("both", b"upper"), file(".wh.both", b"")], vec![file(".wh.both", b""), file("both", b"upper")]] {
        assert_eq!(image(&[lower(), upper]).unwrap().text("both"), "upper");
    }
    // An opaque directory keeps its attributes; one that is deleted and implied again does not.
    let mode = |upper: Vec<Vec<u8>>| image(&[lower(), upper]).unwrap().inode("dir").mode;
    assert_eq!(mode(vec![file("dir/.wh..wh..opq", b""), file("dir/new", b"")]), 0o700);
    assert_eq!(mode(vec![file(".wh.dir", b""), file("dir/new", b"")]), 0o755);
    assert_eq!(mode(vec![file("dir/new", b""), file(".wh.dir", b"")]), 0o755);
    // A third layer sees the second's entries as lower.
    assert_eq!(
        image(&[lower(), vec![file("dir/new", b"")], vec![file("dir/.wh..wh..opq", b"")]]).unwrap().paths(),
        ["", "both", "dir", "gone"]
    );
}

#[test]
fn kinds_replace_each_other_between_layers() {
    let outcome = image(&[
        vec![directory("d"), file("d/x", b""), symlink("l", "d"), file("h", b"h"), hard_link("h2", "h")],
        vec![file("d", b"now a file"), directory("l"), file(".wh.h", b"")],
    ])
    .unwrap();
    assert_eq!(outcome.paths(), ["", "d", "h2", "l"]);
    assert_eq!((outcome.inode("d").kind, outcome.inode("l").kind), (SourceKind::File, SourceKind::Directory));
    assert_eq!((outcome.text("h2").as_str(), outcome.inode("h2").nlink), ("h", 1));
    for bad in ["x/.wh.", "x/.wh..", "x/.wh..."] {
        assert_eq!(refused(image(&[vec![directory("x")], vec![file(bad, b"")]])).kind(), ErrorKind::Invalid, "{bad}");
    }
    assert_eq!(refused(image(&[vec![symlink("l", "/etc")], vec![file("l/passwd", b"")]])).kind(), ErrorKind::Invalid);
    assert_eq!(refused(image(&[vec![symlink("l", "/etc")], vec![file("l/.wh.passwd", b"")]])).kind(), ErrorKind::Invalid);
}

#[test]
fn the_marks_are_plain_names_in_an_archive() {
    let outcome = super::support::read_entries(&[file("a", b""), file(".wh.a", b"")]).unwrap();
    assert_eq!(outcome.paths(), ["", ".wh.a", "a"]);
}

fn here() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[test]
fn the_image_for_this_platform_is_chosen() {
    let home = layout();
    let (mine, other) = (image_of(&home, "mine", "linux", here()), image_of(&home, "other", "linux", "vax"));
    let mut attestation = image_of(&home, "attestation", "linux", here());
    attestation["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest"});
    index(&home, &[other.clone(), mine.clone(), attestation.clone()]);
    assert_eq!(open(&home).unwrap().paths(), ["", "mine"]);
    // Nested, and named by two tags.
    let nested = blob(home.path(), INDEX, json!({"manifests": [other, mine, attestation]}).to_string().as_bytes());
    index(&home, &[nested.clone(), nested, mine.clone()]);
    assert_eq!(open(&home).unwrap().paths(), ["", "mine"]);
    // The only one is taken whatever it says.
    index(&home, std::slice::from_ref(&other));
    assert_eq!(open(&home).unwrap().paths(), ["", "other"]);

    let second = image_of(&home, "second", "linux", here());
    index(&home, &[mine.clone(), second.clone()]);
    let error = refused(open(&home)).to_string();
    assert!(error.contains(mine["digest"].as_str().unwrap()) && error.contains(second["digest"].as_str().unwrap()), "{error}");
    let foreign = image_of(&home, "foreign", "plan9", here());
    index(&home, &[other, foreign]);
    let error = refused(open(&home));
    assert!(
        error.kind() == ErrorKind::Invalid && error.to_string().contains("linux/vax") && error.to_string().contains("plan9"),
        "{error}"
    );
    index(&home, &[]);
    assert_eq!(refused(open(&home)).kind(), ErrorKind::Invalid);
}

#[test]
fn every_blob_is_checked() {
    let home = layout();
    let bytes = archive(&[file("a", b"the content")]);
    let layer = blob(home.path(), TAR, &bytes);
    let image = manifest(&home, std::slice::from_ref(&layer));
    index(&home, std::slice::from_ref(&image));
    assert!(open(&home).is_ok());
    let path = |descriptor: &Value| home.path().join("blobs/sha256").join(&descriptor["digest"].as_str().unwrap()["sha256:".len()..]);
    let damaged = |what: &Value, at: usize| {
        let good = fs::read(path(what)).unwrap();
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(path(what), bad).unwrap();
        let error = refused(open(&home));
        fs::write(path(what), &good[..good.len() - 1]).unwrap();
        let short = refused(open(&home));
        fs::remove_file(path(what)).unwrap();
        let missing = refused(open(&home));
        fs::write(path(what), good).unwrap();
        for (error, kind) in [(error, ErrorKind::Corrupt), (short, ErrorKind::Corrupt), (missing, ErrorKind::NotFound)] {
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(what["digest"].as_str().unwrap()), "{error}");
        }
    };
    damaged(&layer, 512 + 3);
    damaged(&layer, bytes.len() - 1);
    damaged(&image, 5);
    assert!(open(&home).is_ok());
}

#[test]
fn what_is_no_image_is_refused() {
    let home = layout();
    let layer = blob(home.path(), "application/vnd.oci.image.layer.v1.tar+encrypted", b"x");
    index(&home, &[manifest(&home, &[layer])]);
    assert!(refused(open(&home)).to_string().contains("+encrypted"));
    for digest in ["sha512:00", "sha256:../../../../etc/passwd", "sha256:AA", "é"] {
        index(&home, &[json!({"mediaType": MANIFEST, "digest": digest, "size": 1})]);
        assert_eq!(refused(open(&home)).kind(), ErrorKind::Invalid, "{digest}");
    }
    for text in ["", "{", "[]", r#"{"manifests": 7}"#] {
        fs::write(home.path().join("index.json"), text).unwrap();
        assert_eq!(refused(open(&home)).kind(), ErrorKind::Corrupt, "{text}");
    }
    fs::write(home.path().join("index.json"), vec![b' '; (4 << 20) + 1]).unwrap();
    assert_eq!(refused(open(&home)).kind(), ErrorKind::Exhausted);
    fs::write(home.path().join("oci-layout"), r#"{"imageLayoutVersion": "2.0.0"}"#).unwrap();
    assert_eq!(refused(open(&home)).kind(), ErrorKind::Invalid);
}
