//! Bad input: exit codes and messages (the table of issue 3).

use std::fs;

use crate::rig::Rig;

#[test]
fn wrong_usage_is_exit_code_2_and_touches_nothing() {
    let rig = Rig::new();
    for (line, words) in [
        ("nonsense", &["nonsense"][..]),
        ("mount {m}", &["--workspace"]),
        ("mount --workspace Bad_Name {m}", &["workspace name", "'B'"]),
        ("mount --workspace w --quota 10parsecs {m}", &["parsecs", "64MiB"]),
        ("mount --workspace w --base b --from s {m}", &["--from"]),
        ("unmount --timeout soon {m}", &["soon"]),
        ("list bases --store ftp://host/x", &["unknown scheme", "s3://"]),
        ("list bases --store s3://bucket?speed=9", &["speed", "prefix"]),
        ("list bases --store s3://user:hunter2@bucket", &["URL"]),
        ("list bases --store file://relative", &["file"]),
        ("list bases --store file:///x --ca-file {nothing}", &["nothing"]),
        ("fork base:b1", &["NEW"]),
        ("gc --grace 0s --drop xyz", &["xyz", "nonce"]),
        ("status Not/valid/../N\u{e4}me", &["mount"]),
    ] {
        let ran = rig.sh(line);
        if line.starts_with("status") {
            ran.fails(1, words);
            continue;
        }
        ran.fails(2, words);
        assert!(!ran.stderr.contains("hunter2"), "a secret is never printed");
    }
    let store = fs::read_dir(rig.path("store")).unwrap().count();
    assert_eq!(store, 0, "refused before any I/O");
    let e: serde_json::Value = serde_json::from_str(&rig.json("mount --workspace w").stderr).unwrap();
    assert_eq!(e["error"]["code"], "usage");
    let e: serde_json::Value = serde_json::from_str(&rig.json("list bases --store s3://b?speed=9").stderr).unwrap();
    assert!(e["error"]["code"] == "usage" && e["error"]["message"].as_str().unwrap().contains("speed"), "{e}");
}

#[test]
fn no_store_is_named() {
    let rig = Rig::new();
    let out = rig.command(["list", "bases"]).env_remove("HILOOP_STORE").output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("HILOOP_STORE"));
}

#[test]
fn a_build_id_never_changes() {
    let rig = Rig::new();
    rig.plant();
    rig.publish("b1");
    fs::write(rig.path("tree/other"), "other").unwrap();
    rig.sh("publish-base --build-id b1 {tree}").fails(1, &["b1", "other content", "hint: "]);
    rig.sh("publish-base --build-id b2 {nowhere}").fails(1, &["nowhere"]);
    assert_eq!(rig.json("list bases").rows().len(), 1);
}

#[test]
fn unknown_things_are_named_and_nothing_is_created() {
    let rig = Rig::new();
    rig.plant();
    rig.publish("b1");
    rig.mount("a", "m", "--workspace w --base nope").fails(1, &["base", "nope"]);
    rig.mount("a", "m", "--workspace w --from nope").fails(1, &["snapshot", "nope"]);
    rig.mount("a", "m", "--read-only --workspace nope").fails(1, &["workspace", "nope"]);
    rig.sh("fork snapshot:nope x").fails(1, &["snapshot", "nope"]);
    rig.sh("fork teapot:b1 x").fails(1, &["teapot"]);
    rig.sh("delete workspace nope").fails(1, &["workspace", "nope"]);
    rig.sh("lineage nope").fails(1, &["nope"]);
    rig.sh("export base:nope {out}").fails(1, &["nope"]);
    rig.sh("list bases --store file:///no/such/store").fails(1, &["does not exist", "/no/such/store"]);
    assert!(!std::path::Path::new("/no/such").exists());
    rig.sh("flush nope --cache-dir {a}").fails(1, &["nope", "not mounted"]);
    rig.sh("unmount {m}").fails(1, &["no workspace is mounted here"]);
    rig.sh("status --cache-dir {never}").fails(1, &["no daemon runs"]);
    assert_eq!(rig.json("list workspaces").rows().len(), 0);
    assert!(fs::read_dir(rig.path("m")).unwrap().next().is_none());
    let e: serde_json::Value = serde_json::from_str(&rig.json("fork snapshot:nope x").stderr).unwrap();
    assert_eq!(e["error"]["code"], "not_found");
}

#[test]
fn mount_points_must_be_free_empty_directories() {
    let rig = Rig::new();
    rig.place("full");
    fs::write(rig.path("full/x"), "x").unwrap();
    fs::write(rig.path("file"), "x").unwrap();
    rig.mount("a", "full", "--workspace w").fails(1, &["not empty", "full"]);
    let line = "mount --cache-dir {a} --workspace w";
    rig.sh(&format!("{line} {{file}}")).fails(1, &["not a directory", "file"]);
    rig.sh(&format!("{line} {{absent}}")).fails(1, &["does not exist", "mkdir"]);
    assert_eq!(fs::read_dir(rig.path("store")).unwrap().count(), 0, "nothing was created");
    rig.mount("a", "m", "--workspace w").ok();
    rig.mount("a", "m", "--workspace w2").fails(1, &["mounted here already"]);
    rig.mount("a", "n", "--workspace w").fails(1, &["is mounted on", "unmount it first"]);
    rig.sh("delete workspace w").fails(1, &["open for write", "node-a", "--force"]);
    rig.sh("fork base:x w").fails(1, &["x"]);
    assert_eq!(rig.json("list workspaces").rows().len(), 1);
}

#[test]
fn a_failed_child_does_not_fail_its_siblings() {
    let rig = Rig::new();
    rig.plant();
    rig.publish("b1");
    rig.sh("fork base:b1 taken").ok();
    let ran = rig.json("fork base:b1 free taken also-free");
    assert_eq!(ran.code, 1);
    let v: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let failed: Vec<bool> = v["children"].as_array().unwrap().iter().map(|c| !c["error"].is_null()).collect();
    assert_eq!(failed, [false, true, false], "{v}");
}

#[test]
fn a_copied_cache_directory_does_not_go_on_with_the_session() {
    let rig = Rig::new();
    let mounted = rig.mount("a", "m", "--workspace w").json();
    fs::write(rig.path("m/x"), "x").unwrap();
    rig.kill(crate::rig::pid(&mounted));
    let copied = std::process::Command::new("cp").arg("-a").arg(rig.path("a")).arg(rig.path("b")).status().unwrap();
    assert!(copied.success());
    let clone = rig.mount("b", "n", "--workspace w").json();
    assert!(clone["epoch"].as_u64() > mounted["epoch"].as_u64(), "a clone takes an epoch of its own");
}
