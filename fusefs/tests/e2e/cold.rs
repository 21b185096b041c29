//! The first look into a workspace on a node that has nothing of it, through the kernel.

use std::fs;

use hiloop_engine::catalog::Head;
use hiloop_engine::context::StoreContext;
use hiloop_env::Env;
use hiloop_manifest::schema::Key;
use hiloop_manifest::tree::{KeyRange, leaves};
use hiloop_store::{Store, StoreOptions};
use hiloop_types::Ino;

use crate::rig::Rig;

fn rounds(rig: &Rig) -> u64 {
    let status = rig.json("status {m}").json();
    status["hydration"]["rounds"].as_u64().unwrap_or_else(|| panic!("{status}"))
}

#[test]
fn mount_listing_and_one_file_take_three_rounds_of_the_store() {
    let rig = Rig::new();
    for d in 0..40 {
        let dir = rig.path("tree").join(format!("d{d:02}"));
        fs::create_dir(&dir).unwrap();
        for f in 0..60 {
            fs::write(dir.join(format!("f{f:02}")), format!("file {f} of {d}")).unwrap();
        }
    }
    rig.publish("b1");
    rig.sh("fork base:b1 ws").ok();
    rig.mount("a", "m", "--workspace ws").ok();
    let m = rig.path("m");
    assert!(rounds(&rig) <= 1, "mount: {}", rounds(&rig));
    let listed = fs::read_dir(&m).unwrap().map(|e| e.unwrap().metadata().unwrap()).filter(fs::Metadata::is_dir).count();
    assert_eq!(listed, 40);
    assert!(rounds(&rig) <= 1, "ls -l: {}", rounds(&rig));
    assert_eq!(fs::read_to_string(m.join("d20/f30")).unwrap(), "file 30 of 20");
    assert!(rounds(&rig) <= 3, "one file: {}", rounds(&rig));
    rig.sh("unmount {m}").ok();
}

/// A bit flipped in the store in what some entries of a directory lead to.
#[test]
fn a_listing_shows_the_names_of_what_is_lost_and_asking_for_it_is_an_io_error() {
    let rig = Rig::new();
    for f in 0..3000 {
        fs::write(rig.path("tree").join(format!("f{f:04}")), format!("file {f}")).unwrap();
    }
    rig.publish("b1");
    rig.sh("fork base:b1 ws").ok();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let store = Store::open(&rig.store().parse().unwrap(), StoreOptions::default(), Env::real()).await.unwrap();
        let ctx = StoreContext::new(store.clone(), Env::real(), "test");
        let root = ctx.catalog.require::<Head>("ws").await.unwrap().doc.root.unwrap();
        let range = KeyRange::between(Key::attr(Ino(1500)).as_bytes(), Key::attr(Ino(1501)).as_bytes());
        let leaf = ctx.hydrator.with_nodes(|h| leaves(h, &root, &range, 1)).await.unwrap()[0];
        let key = leaf.loc.pack.key();
        let mut bytes = store.get(&key).await.unwrap().unwrap().bytes.to_vec();
        bytes[leaf.loc.offset as usize + 100] ^= 1;
        store.put(&key, bytes.into()).await.unwrap();
    });
    rig.mount("a", "m", "--workspace ws").ok();
    let m = rig.path("m");
    let mut names: Vec<String> = fs::read_dir(&m).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, (0..3000).map(|f| format!("f{f:04}")).collect::<Vec<_>>());
    let (mut fine, mut lost) = (0, 0);
    for name in &names {
        match fs::metadata(m.join(name)) {
            Ok(found) => {
                assert!(found.is_file() && found.len() >= 6, "{name}");
                fine += 1;
            }
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::EIO), "{name}: {e}");
                lost += 1;
            }
        }
    }
    assert!(fine > 1000 && lost > 50, "{fine} fine, {lost} lost");
    // Said again, not remembered as something else.
    let first = names.iter().find(|n| fs::metadata(m.join(n)).is_err()).unwrap();
    assert_eq!(fs::read(m.join(first)).unwrap_err().raw_os_error(), Some(libc::EIO));
    rig.sh("unmount {m}").ok();
}
