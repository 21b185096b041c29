//! Rows of the guarantees (`protocols.md` 1) that need a broken disk or store: what is damaged is named, and all else goes on.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::rig::{Rig, is_running, pattern, pid};

fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().flat_map(|e| if e.path().is_dir() { files(&e.path()) } else { vec![e.path()] }).collect()
}

/// Inverts a byte inside the first place of `marker` below `dir`.
fn spoil(dir: &Path, marker: &[u8]) -> PathBuf {
    for path in files(dir) {
        let bytes = fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(marker.len()).position(|w| w == marker) {
            fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[!bytes[at]], at as u64).unwrap();
            return path;
        }
    }
    panic!("{:?} is nowhere below {}", String::from_utf8_lossy(marker), dir.display());
}

#[test]
fn a_damaged_object_is_an_error_where_it_is_read_and_nowhere_else() {
    let rig = Rig::new();
    rig.plant();
    // Bytes that do not compress stand in their pack as they are.
    let (bad, good) = (pattern(200_000, 77), pattern(200_000, 78));
    fs::write(rig.path("tree/bad"), &bad).unwrap();
    fs::write(rig.path("tree/good"), &good).unwrap();
    rig.publish("b1");
    let pack = spoil(&rig.path("store/packs"), &bad[1000..1032]);
    rig.mount("a", "m", "--workspace w --base b1").ok();
    assert_eq!(fs::read(rig.path("m/bad")).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::read(rig.path("m/good")).unwrap(), good);
    fs::write(rig.path("m/new"), "writes go on").unwrap();
    rig.sh("flush {m}").ok();
    let ran = rig.json("fsck --deep base:b1");
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(report["corrupt_total"].as_u64() > Some(0), "{report}");
    let name = pack.strip_prefix(rig.path("store")).unwrap().display().to_string();
    let named =
        report["corrupt"].as_array().unwrap().iter().any(|f| f["pack"].as_str().is_some_and(|p| name.contains(p) || p.contains(&name)));
    assert!(named, "{name} is not named in {report}");
    // Overwriting needs none of it.
    fs::write(rig.path("m/bad"), "new content").unwrap();
    assert_eq!(fs::read_to_string(rig.path("m/bad")).unwrap(), "new content");
}

#[test]
fn a_damaged_journal_is_read_only_and_named_and_recover_offers_the_prefix() {
    let rig = Rig::new();
    let first = rig.mount("a", "m", "--workspace w").json();
    fs::write(rig.path("m/published"), "published").unwrap();
    rig.sh("flush {m}").ok();
    rig.store_away();
    for i in 0..100 {
        fs::write(rig.path(&format!("m/f{i}")), format!("content of file number {i} ends here")).unwrap();
    }
    rig.kill(pid(&first));
    rig.store_back();
    spoil(&rig.path("a/journal"), b"content of file number 50 ends here");

    // What is whole can be read; nothing is accepted and nothing published behind a gap.
    let again = rig.mount("a", "m", "--workspace w").json();
    let status = rig.status("{m}");
    assert!(status["standing"] == "read_only" && status["reason"].as_str().is_some_and(|r| r.contains("journal")), "{status}");
    assert_eq!(fs::read_to_string(rig.path("m/f49")).unwrap(), "content of file number 49 ends here");
    assert!(!rig.path("m/f51").exists(), "behind the gap");
    let refused = fs::write(rig.path("m/more"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::File::open(rig.path("m/f49")).unwrap().sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    rig.sh("flush {m}").fails(1, &["read-only"]);
    rig.mount("a", "n", "--workspace other").fails(1, &["journal", "read-only", "recover"]);
    assert_eq!(rig.json("list workspaces").rows().len(), 1, "nothing was created");
    rig.sh("recover --cache-dir {a}").fails(1, &["journal", "unmount"]);
    let left = rig.json("unmount {m}");
    assert_eq!(left.code, 1, "it says that something is left: {}", left.stdout);
    rig.until("the daemon ends", || !is_running(pid(&again)));

    let recovered = rig.json("recover --cache-dir {a}").json();
    let fork = recovered["forks"][0]["name"].as_str().unwrap_or_else(|| panic!("{recovered}")).to_owned();
    assert_eq!(recovered["forks"][0]["from"], "w");
    rig.mount("b", "r", &format!("--workspace {fork}")).ok();
    assert_eq!(fs::read_to_string(rig.path("r/published")).unwrap(), "published");
    assert_eq!(fs::read_to_string(rig.path("r/f49")).unwrap(), "content of file number 49 ends here");
    assert!(!rig.path("r/f51").exists());
    // The node goes on, and the workspace with what was published; what is missing stands in its lineage.
    let after = rig.mount("a", "m", "--workspace w").json();
    assert_ne!(after["lost_window"]["state"], "none", "{after}");
    assert_eq!(fs::read_to_string(rig.path("m/published")).unwrap(), "published");
    fs::write(rig.path("m/goes-on"), "x").unwrap();
    rig.sh("flush {m}").ok();
}

/// A file system of a given size below the node directory.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf, size: &str) -> Self {
        fs::create_dir(&at).unwrap();
        mount(Some("tmpfs"), &at, Some("tmpfs"), MsFlags::empty(), Some(format!("size={size}").as_str())).unwrap();
        Self(at)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// rclone/rclone#4442, #4998, juicedata/juicefs#942: a full cache disk kills reads or writes.
#[test]
fn a_full_node_disk_refuses_writes_and_keeps_everything_else() {
    let rig = Rig::new();
    rig.plant();
    rig.publish("b1");
    let small = Small::mount(rig.path("disk"), "300m");
    rig.mount("disk/node", "m", "--workspace w --base b1 --cache-floor 1MiB").ok();
    fs::write(rig.path("m/kept"), "kept").unwrap();
    rig.store_away();
    let mut written = Vec::new();
    let full = loop {
        let (name, data) = (rig.path(&format!("m/f{}", written.len())), pattern(1 << 20, written.len() as u8));
        match fs::write(&name, &data) {
            Ok(()) => written.push(data),
            Err(e) => break e,
        }
        assert!(written.len() < 400, "the disk is never full");
    };
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC), "after {} MiB: {full}", written.len());
    // Reading, removing, truncating and fsync go on.
    assert_eq!(fs::read_to_string(rig.path("m/kept")).unwrap(), "kept");
    assert_eq!(fs::read(rig.path("m/f1")).unwrap(), written[1]);
    fs::OpenOptions::new().write(true).open(rig.path("m/f2")).unwrap().set_len(10).unwrap();
    fs::remove_file(rig.path("m/f3")).unwrap();
    fs::File::open(rig.path("m/f1")).unwrap().sync_all().unwrap();
    assert_eq!(rig.status("{m}")["standing"], "live");
    rig.store_back();
    rig.sh("flush {m}").ok();
    // Published data need no room here: there is room again.
    rig.until("there is room again", || fs::write(rig.path("m/again"), pattern(1 << 20, 1)).is_ok());
    rig.sh("unmount {m}").ok();
    rig.mount("b", "n", "--workspace w").ok();
    for (i, data) in written.iter().enumerate().filter(|(i, _)| !(2..=3).contains(i)) {
        assert_eq!(fs::read(rig.path(&format!("n/f{i}"))).unwrap(), *data, "f{i}");
    }
    drop(small);
}
