//! Two nodes and one workspace.

use std::fs;

use crate::rig::Rig;

#[test]
fn a_live_writer_is_named_and_take_over_fences_it() {
    let rig = Rig::new();
    let first = rig.mount("a", "m", "--workspace w").json();
    fs::write(rig.path("m/shared"), "published").unwrap();
    rig.sh("flush {m}").ok();
    rig.mount("b", "n", "--workspace w --heartbeat-watch 60s").fails(1, &["live writer", "node-a", "--take-over"]);
    assert!(fs::read_dir(rig.path("n")).unwrap().next().is_none(), "nothing was mounted");

    let second = rig.mount("b", "n", "--workspace w --take-over").json();
    assert!(second["epoch"].as_u64() > first["epoch"].as_u64());
    assert_eq!(fs::read_to_string(rig.path("n/shared")).unwrap(), "published");
    rig.until("the idle writer notices", || rig.status("--cache-dir {a} {m}")["standing"] == "fenced");
    let refused = fs::write(rig.path("m/late"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::read_to_string(rig.path("m/shared")).unwrap(), "published", "local reads go on");
    let lineage = rig.json("lineage workspace:w").rows();
    assert!(lineage[0]["events"].as_array().unwrap().len() >= 2, "{lineage:?}");
}

#[test]
fn recover_brings_a_fenced_tail_back_and_has_nothing_to_do_otherwise() {
    let rig = Rig::new();
    let none = rig.json("recover --cache-dir {a}").json();
    assert_eq!(none["forks"].as_array().unwrap().len(), 0);
    let first = rig.mount("a", "m", "--workspace w").json();
    fs::write(rig.path("m/base"), "base").unwrap();
    rig.sh("flush {m}").ok();
    rig.store_away();
    fs::write(rig.path("m/tail"), "only here").unwrap();
    rig.kill(crate::rig::pid(&first));
    rig.store_back();
    let second = rig.mount("b", "n", "--workspace w --take-over").json();
    assert_ne!(second["lost_window"]["state"], "none", "{second}");
    assert!(!rig.path("n/tail").exists(), "it never reached the store");
    let recovered = rig.json("recover --cache-dir {a}").json();
    let fork = &recovered["forks"][0];
    assert_eq!(fork["from"], "w", "{recovered}");
    for key in ["name", "operations", "bytes"] {
        assert!(!fork[key].is_null(), "{key}: {recovered}");
    }
    let name = fork["name"].as_str().unwrap();
    rig.mount("b", "r", &format!("--workspace {name}")).ok();
    assert_eq!(fs::read_to_string(rig.path("r/tail")).unwrap(), "only here");
    assert_eq!(fs::read_to_string(rig.path("r/base")).unwrap(), "base");
    let none = rig.json("recover --cache-dir {a}").json();
    assert_eq!(none["forks"].as_array().unwrap().len(), 0, "it is done once");
}
