//! Ways in (archives, images) and what a mount's options promise.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use crate::rig::{Rig, listing, pattern, pid};

/// An OCI image layout of two layers: the second removes a file of the first and adds one.
const IMAGE: &str = r#"
set -e
mkdir -p layout/blobs/sha256 one/dir two/dir
echo kept >one/dir/kept; echo gone >one/dir/gone; echo new >two/dir/new; : >two/dir/.wh.gone
blob() { d=$(sha256sum "$1" | cut -d' ' -f1); mv "$1" "layout/blobs/sha256/$d"; echo "$d"; }
size() { stat -c %s "layout/blobs/sha256/$1"; }
tar -C one -cf one.tar dir; tar -C two -czf two.tar.gz dir
first=$(sha256sum one.tar | cut -d' ' -f1); second=$(gzip -dc two.tar.gz | sha256sum | cut -d' ' -f1)
one=$(blob one.tar); two=$(blob two.tar.gz)
printf '{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:%s","sha256:%s"]}}' $first $second >config; config=$(blob config)
t=application/vnd.oci.image
printf '{"schemaVersion":2,"mediaType":"%s.manifest.v1+json","config":{"mediaType":"%s.config.v1+json","digest":"sha256:%s","size":%s},"layers":[{"mediaType":"%s.layer.v1.tar","digest":"sha256:%s","size":%s},{"mediaType":"%s.layer.v1.tar+gzip","digest":"sha256:%s","size":%s}]}' \
    $t $t $config $(size $config) $t $one $(size $one) $t $two $(size $two) >manifest
manifest=$(blob manifest)
printf '{"schemaVersion":2,"manifests":[{"mediaType":"%s.manifest.v1+json","digest":"sha256:%s","size":%s}]}' $t $manifest $(size $manifest) >layout/index.json
printf '{"imageLayoutVersion":"1.0.0"}' >layout/oci-layout
"#;

#[test]
fn an_archive_on_standard_input_and_an_image_layout_are_published() {
    let rig = Rig::new();
    rig.plant();
    let archive = rig.path("tree.tar.gz");
    assert!(Command::new("tar").arg("-C").arg(rig.path("tree")).arg("-czf").arg(&archive).arg(".").status().unwrap().success());
    let mut publish = rig.command(["publish-base", "--build-id", "from-stdin", "-"]);
    let out = publish.stdin(File::open(&archive).unwrap()).stderr(Stdio::inherit()).output().unwrap();
    assert!(out.status.success());
    rig.json("publish-base --build-id from-file {tree.tar.gz}").json();
    rig.mount("a", "m", "--read-only --base from-stdin").ok();
    rig.mount("a", "n", "--read-only --base from-file").ok();
    assert_eq!(listing(&rig.path("m"), true), listing(&rig.path("n"), true), "the same tree, down to the inode numbers");
    let seconds = |dir: &str| -> Vec<String> {
        // An archive without extended headers keeps whole seconds.
        let cut = |l: String| l.split("mtime").next().unwrap().to_owned() + l.rsplit(' ').next().unwrap();
        listing(&rig.path(dir), false).into_values().map(cut).collect()
    };
    assert_eq!(seconds("m"), seconds("tree"));

    assert!(Command::new("sh").args(["-c", IMAGE]).current_dir(rig.dir.path()).status().unwrap().success());
    rig.json("publish-base --build-id image {layout}").json();
    rig.mount("a", "i", "--workspace i --base image").ok();
    assert_eq!(fs::read_to_string(rig.path("i/dir/kept")).unwrap(), "kept\n");
    assert_eq!(fs::read_to_string(rig.path("i/dir/new")).unwrap(), "new\n");
    assert_eq!(fs::read_dir(rig.path("i/dir")).unwrap().count(), 2, "the whiteout took its file, and is none itself");
}

#[test]
fn df_shows_the_quota_and_room_comes_back() {
    let rig = Rig::new();
    rig.mount("a", "m", "--workspace w --quota 8MiB").ok();
    let df = |place: &str| {
        let out = Command::new("stat").args(["-f", "-c", "%b %a %S"]).arg(rig.path(place)).output().unwrap();
        let fields: Vec<u64> = String::from_utf8(out.stdout).unwrap().split_whitespace().map(|n| n.parse().unwrap()).collect();
        (fields[0] * fields[2], fields[1] * fields[2])
    };
    assert_eq!(df("m"), (8 << 20, 8 << 20));
    fs::write(rig.path("m/first"), pattern(6 << 20, 1)).unwrap();
    assert_eq!(df("m"), (8 << 20, 2 << 20));
    assert_eq!(fs::write(rig.path("m/second"), pattern(6 << 20, 2)).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    fs::remove_file(rig.path("m/second")).unwrap();
    fs::write(rig.path("m/first"), pattern(6 << 20, 3)).unwrap();
    fs::remove_file(rig.path("m/first")).unwrap();
    fs::write(rig.path("m/second"), pattern(7 << 20, 4)).unwrap();
    rig.sh("unmount {m}").ok();
    rig.sh("fork workspace:w child").ok();
    rig.mount("b", "n", "--workspace child").ok();
    assert_eq!(df("n"), (8 << 20, 1 << 20), "kept, and inherited");
    rig.mount("b", "m", "--workspace w --quota 16MiB").ok();
    assert_eq!(df("m"), (16 << 20, 9 << 20), "and changed where it is given anew");
}

#[test]
fn a_replicated_fsync_waits_for_the_store() {
    let rig = Rig::new();
    let mounted = rig.mount("a", "m", "--workspace w --durability replicated").json();
    rig.sh("flush {m}").ok();
    rig.store_away();
    let mut file = File::create(rig.path("m/f")).unwrap();
    file.write_all(&pattern(100_000, 5)).unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(file.sync_all()));
    rig.until("the replicator has met the store's absence", || rig.status("{m}")["replication_error"].is_string());
    assert!(matches!(told.try_recv(), Err(mpsc::TryRecvError::Empty)), "it waits for as long as the store is away");
    assert_eq!(fs::read(rig.path("m/f")).unwrap(), pattern(100_000, 5), "reading does not wait for it");
    rig.store_back();
    told.recv().unwrap().unwrap();
    rig.kill(pid(&mounted));
    // It was in the store when fsync returned.
    rig.mount("b", "n", "--workspace w --take-over").ok();
    assert_eq!(fs::read(rig.path("n/f")).unwrap(), pattern(100_000, 5));
}
