//! The main job, as a user runs it.

use std::fs;

use crate::rig::{Rig, listing, pattern};

#[test]
fn a_tree_is_published_mounted_written_cut_forked_and_found_again_elsewhere() {
    let rig = Rig::new();
    rig.plant();
    let published = rig.publish("b1");
    assert_eq!(published["build_id"], "b1");
    for key in ["root", "files", "bytes_logical", "bytes_stored", "chunks_new", "chunks_reused", "packs", "seconds"] {
        assert!(!published[key].is_null(), "{key}: {published}");
    }
    let again = rig.publish("b1");
    assert_eq!((&again["packs"], &again["root"]), (&0.into(), &published["root"]), "the same content uploads nothing");

    let mounted = rig.mount("a", "m", "--workspace demo --base b1").json();
    assert_eq!((&mounted["workspace"], &mounted["lost_window"]["state"]), (&"demo".into(), &"none".into()), "{mounted}");
    assert!(mounted["epoch"].as_u64().is_some());
    let m = rig.path("m");
    assert_eq!(listing(&m, false), listing(&rig.path("tree"), false));

    fs::write(m.join("etc/hosts"), "changed\n").unwrap();
    fs::write(m.join("new"), pattern(2 << 20, 3)).unwrap();
    fs::remove_file(m.join("file-00")).unwrap();
    let cut = rig.json("snapshot --wait --name s1 {m}").json();
    assert_eq!((&cut["snapshot"], &cut["durability"]), (&"s1".into(), &"replicated".into()));
    assert!(cut["root"].is_string() && cut["lineage"]["workspace"] == "demo", "{cut}");
    let at_cut = listing(&m, true);
    fs::write(m.join("after"), "behind the cut").unwrap();

    let forked = rig.json("fork snapshot:s1 f1 f2 f3").json();
    let children = forked["children"].as_array().unwrap();
    assert_eq!(children.len(), 3);
    for c in children {
        assert!(c["error"].is_null() && c["root"] == cut["root"] && c["parent"]["name"] == "s1", "{c}");
        assert!(c["bytes_written"].as_u64().unwrap() <= 8192, "{c}");
    }
    for f in ["f1", "f2", "f3"] {
        rig.mount("a", f, &format!("--workspace {f}")).ok();
        assert_eq!(listing(&rig.path(f), true), at_cut, "{f} starts at the cut");
        fs::write(rig.path(f).join("own"), f).unwrap();
    }
    for f in ["f1", "f2", "f3"] {
        assert_eq!(fs::read_to_string(rig.path(f).join("own")).unwrap(), f);
    }
    assert!(!m.join("own").exists(), "a fork's change is in no other");

    let flushed = rig.json("flush f1").json();
    assert_eq!(flushed["workspace"], "f1");
    let rows = rig.json("diff snapshot:s1 workspace:f1").rows();
    let paths: Vec<_> = rows.iter().filter(|r| r["path"] != "").map(|r| (r["kind"].clone(), r["path"].clone())).collect();
    assert_eq!(paths, [("added".into(), "own".into())], "{rows:?}");

    let last = listing(&m, true);
    for f in ["m", "f1", "f2", "f3"] {
        let left = rig.json(&format!("unmount {{{f}}}")).json();
        assert_eq!(left["left_bytes"], 0, "{left}");
        assert!(left["published"].as_u64().is_some());
    }
    let elsewhere = rig.mount("b", "n", "--workspace demo").json();
    assert_eq!(elsewhere["lost_window"]["state"], "none", "it was given back");
    assert!(elsewhere["epoch"].as_u64() > mounted["epoch"].as_u64());
    assert_eq!(listing(&rig.path("n"), true), last, "identical down to the inode numbers");
    rig.sh("unmount {n}").ok();
}

#[test]
fn an_empty_workspace_needs_no_base_and_fork_flushes_what_is_mounted() {
    let rig = Rig::new();
    let mounted = rig.mount("a", "m", "--workspace scratch").json();
    assert_eq!(mounted["created"], true);
    fs::write(rig.path("m/x"), "not published yet").unwrap();
    rig.sh("fork --flush --cache-dir {a} workspace:scratch copy").ok();
    rig.mount("a", "c", "--workspace copy").ok();
    assert_eq!(fs::read_to_string(rig.path("c/x")).unwrap(), "not published yet");
}

#[test]
fn a_read_only_mount_takes_a_lease_and_gives_it_back() {
    let rig = Rig::new();
    rig.plant();
    rig.publish("b1");
    let mounted = rig.mount("a", "m", "--read-only --base b1").json();
    assert_eq!(mounted["read_only"], true);
    assert_eq!(listing(&rig.path("m"), false), listing(&rig.path("tree"), false));
    let refused = fs::write(rig.path("m/x"), "").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    let held = || rig.json("gc --dry-run").json()["held"].as_array().unwrap().len();
    assert_eq!(held(), 1, "the lease keeps the tree");
    rig.mount("a", "n", "--read-only --base b1").ok();
    rig.sh("unmount {m}").ok();
    assert_eq!(held(), 1, "its lease is gone when the command returns, the other's stands");
    rig.sh("unmount {n}").ok();
    assert_eq!(held(), 0);
    assert_eq!(rig.json("list workspaces").rows().len(), 0, "no workspace was made");
}
