//! What the commands print.

use std::fs;

use crate::rig::{Rig, pid};

#[test]
fn status_shows_the_ladder_and_the_requests() {
    let rig = Rig::new();
    rig.plant();
    rig.publish("b1");
    let mounted = rig.mount("a", "m", "--workspace w --base b1 --quota 1GiB --backlog-limit 64MiB --durability replicated").json();
    fs::read(rig.path("m/etc/deep/er/data")).unwrap();
    fs::write(rig.path("m/x"), "x").unwrap();
    rig.sh("flush {m}").ok();
    for target in ["{m}", "w --cache-dir {a}", "workspace:w --cache-dir {a}"] {
        let s = rig.status(target);
        for key in ["pid", "epoch", "accepted", "journaled", "shipped", "published", "backlog_bytes", "backlog_operations", "lag_seconds"] {
            assert!(s[key].is_number(), "{key}: {s}");
        }
        assert!(s["keeper_pid"].is_null() && s.as_object().unwrap().contains_key("keeper_pid"));
        assert_eq!((&s["transport"], &s["workspace"], &s["standing"]), (&"device".into(), &"w".into(), &"live".into()));
        assert_eq!((s["pid"].as_i64(), s["quota"].as_u64()), (mounted["pid"].as_i64(), Some(1 << 30)));
        assert_eq!((&s["durability"], s["backlog_limit"].as_u64()), (&"replicated".into(), Some(64 << 20)));
        assert_eq!(s["published"], s["accepted"]);
        assert!(s["fuse"]["requests"]["read"].as_u64() > Some(0), "{s}");
        assert!(s["cache"]["fills"].as_u64().is_some() && s["residency"]["bytes"].as_u64().is_some());
    }
    let text = rig.sh("status {m}");
    assert!(text.ok().stdout.contains("accepted") && text.stdout.contains("workspace w (live)"), "{}", text.stdout);
    let metrics = rig.sh("status --prometheus --cache-dir {a}");
    assert!(metrics.ok().stdout.contains("hiloop_fuse_requests_total{opcode=\"write\"}"), "{}", metrics.stdout);
    assert!(!metrics.stdout.contains("\"w\""), "no workspace is a label");
}

#[test]
fn a_store_is_looked_at_without_a_daemon() {
    let rig = Rig::new();
    rig.plant();
    rig.publish("b1");
    rig.sh("fork base:b1 one two").ok();
    assert_eq!(rig.json("list bases").rows()[0]["name"], "b1");
    let names: Vec<_> = rig.json("list workspaces").rows().iter().map(|w| w["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["one", "two"]);
    assert_eq!(rig.json("list snapshots").rows().len(), 0);
    assert!(rig.sh("list workspaces").ok().stdout.starts_with("NAME"));
    assert_eq!(rig.json("lineage one").rows()[1]["name"], "b1");
    assert_eq!(rig.json("diff base:b1 workspace:one").rows().len(), 0);
    assert!(rig.json("du base:b1").json()["bytes_stored"].as_u64() > Some(0));
    rig.sh("export base:b1 {out}").ok();
    assert_eq!(crate::rig::listing(&rig.path("out"), false), crate::rig::listing(&rig.path("tree"), false));
    let clean = rig.json("fsck --deep").json();
    assert_eq!((&clean["missing_total"], &clean["corrupt_total"]), (&0.into(), &0.into()), "{clean}");
    rig.sh("delete workspace one two").ok();
    rig.sh("delete base b1").ok();
    let dry = rig.json("gc --dry-run --grace 0s").json();
    let packs = || walk(&rig.path("store/packs"));
    let before = packs();
    assert!(before > 0 && dry["packs_deleted"].as_u64().is_some());
    // A deletion protects what it names from runs that did not find it before they listed the packs: the second run may delete.
    rig.sh("gc --grace 0s").ok();
    rig.sh("gc --grace 0s").ok();
    assert_eq!(packs(), 0, "nothing names them");
    assert!(!rig.path("a").exists(), "no daemon was started");
}

#[test]
fn fsck_finds_what_is_missing_and_exits_1() {
    let rig = Rig::new();
    rig.plant();
    rig.publish("b1");
    fs::remove_dir_all(rig.path("store/packs")).unwrap();
    let ran = rig.json("fsck");
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(report["missing_total"].as_u64() > Some(0) || report["corrupt_total"].as_u64() > Some(0), "{report}");
}

#[test]
fn snapshots_get_a_name_where_none_is_given() {
    let rig = Rig::new();
    rig.mount("a", "m", "--workspace w").ok();
    let cut = rig.json("snapshot w --cache-dir {a}").json();
    let name = cut["snapshot"].as_str().unwrap().to_owned();
    assert!(name.starts_with("w-") && cut["durability"] == "local" && cut["root"].is_null(), "{cut}");
    rig.until("it is replicated", || rig.json("list snapshots").rows().iter().any(|s| s["name"] == name.as_str()));
    rig.sh("snapshot --name s1 --wait {m}").ok();
    rig.sh("snapshot --name s1 {m}").fails(1, &["s1", "exists already"]);
}

#[test]
fn logs_are_json_where_asked_and_completions_are_printed() {
    let rig = Rig::new();
    let mounted = rig.mount("a", "m", "--log-format json --workspace w").json();
    let log = fs::read_to_string(rig.path("a/daemon.log")).unwrap();
    let line: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(line["level"], "INFO");
    assert!(pid(&mounted) > 0);
    for shell in ["bash", "zsh", "fish"] {
        assert!(rig.sh(&format!("completions {shell}")).ok().stdout.contains("sandbox-workspace"));
    }
    assert!(rig.sh("--help").ok().stdout.contains("Exit codes"));
    assert!(rig.sh("mount --help").ok().stdout.contains("--take-over"));
    assert!(rig.sh("--version").ok().stdout.contains("sandbox-workspace"));
}

fn walk(dir: &std::path::Path) -> usize {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries.flatten().map(|e| if e.path().is_dir() { walk(&e.path()) } else { 1 }).sum()
}
