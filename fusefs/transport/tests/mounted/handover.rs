//! A stop at a request boundary, and a successor in the same process: nobody notices.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;

use hiloop_transport::{Config, Ended, FileSystem, Session};

use crate::rig::{PATIENCE, Rig, config, null};

#[test]
fn a_stop_loses_nothing_and_repeats_nothing() {
    let fs_: Arc<dyn FileSystem> = Arc::new(null());
    let config = Config { readers: 2, ..config() };
    let mut r = Rig::new(fs_.clone(), config.clone());
    let stop = Arc::new(AtomicBool::new(false));
    let (tx, rx) = mpsc::channel();
    let clients: Vec<_> = (0..3)
        .map(|t| {
            let (dir, stop, done) = (r.path(&format!("d{t}")), stop.clone(), tx.clone());
            std::thread::spawn(move || {
                fs::create_dir(&dir).unwrap();
                let mut n = 0;
                while !stop.load(SeqCst) {
                    let (new, old) = (dir.join("new"), dir.join(n.to_string()));
                    let data = format!("{t}/{n}").repeat(100);
                    // A request that is done twice, or lost, shows as an error: none of these may be repeated.
                    fs::OpenOptions::new().write(true).create_new(true).open(&new).unwrap();
                    fs::write(&new, &data).unwrap();
                    fs::rename(&new, &old).unwrap();
                    assert_eq!(fs::read_to_string(&old).unwrap(), data);
                    fs::remove_file(&old).unwrap();
                    n += 1;
                    done.send(()).unwrap();
                }
                assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
            })
        })
        .collect();
    for _ in 0..20 {
        (0..10).for_each(|_| rx.recv_timeout(PATIENCE).unwrap());
        assert_eq!(r.session.stop(), Ended::Stopped);
        assert_eq!(r.session.in_hand(), 0, "this file system answers where it reads");
        r.session = Session::resume(r.session.devices().unwrap(), *r.session.init(), fs_.clone(), config.clone()).unwrap();
        assert_eq!(r.session.stats().resent, 0);
    }
    stop.store(true, SeqCst);
    clients.into_iter().for_each(|c| c.join().unwrap());
    assert_eq!(r.session.stats().resent, 0);
}
