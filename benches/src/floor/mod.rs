//! The floor: a file system in memory that does nothing but answer, mounted with the flags and timeouts of ours
//! ([`hiloop_fusefs::fuse::kernel`]) and served by fuser with one reader. What it costs is the price of FUSE as a library gives it; the
//! rest is ours to save.
//!
//! It runs as a process of its own (`hiloop-bench floor DIR`), so that its CPU time and memory are apart and it can be bound to a CPU.
//! It answers a line on standard input with a line of JSON, its requests by opcode; the end of its input unmounts it.

mod adapter;
mod content;
mod tree;

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;

use fuser::{Config, InitFlags, KernelConfig, Session, SessionACL};
use hiloop_env::Env;
use hiloop_fusefs::fuse::{Requests, detach, find_mount, kernel};
use hiloop_types::{Error, Result};

use adapter::Adapter;

/// Type of the mount in mountinfo.
const FSTYPE: &str = "fuse.hiloop-floor";

/// Serves the floor on an empty directory until standard input ends.
///
/// # Errors
/// Where it cannot mount, or the mount stops answering.
pub fn serve(at: &Path, env: &Env) -> Result<()> {
    let device = kernel::attach(at, "floor", FSTYPE, kernel::Access { allow_other: true, ..kernel::Access::default() })?;
    let requests = Arc::new(Requests::default());
    let mut config = Config::default();
    config.acl = SessionACL::All;
    config.n_threads = Some(1);
    let adapter = Adapter::new(requests.clone(), env.clone());
    let session = Session::from_fd(adapter, device, SessionACL::All, config).map_err(|e| Error::io("FUSE handshake", &e))?;
    if let Some(mount) = find_mount(at)? {
        kernel::read_ahead(&mount);
    }
    let served = std::thread::Builder::new().name("floor".into()).spawn(move || session.run()).map_err(|e| Error::io("thread", &e))?;
    let io = |e: &std::io::Error| Error::io("standard output", e);
    let (mut out, mut line) = (std::io::stdout().lock(), String::new());
    loop {
        let shown: BTreeMap<&str, u64> = requests.shown();
        serde_json::to_writer(&mut out, &shown).map_err(|e| Error::internal(e.to_string()))?;
        out.write_all(b"\n").and_then(|()| out.flush()).map_err(|e| io(&e))?;
        line.clear();
        if std::io::stdin().lock().read_line(&mut line).map_err(|e| Error::io("standard input", &e))? == 0 {
            break;
        }
    }
    detach(at)?;
    served.join().map_err(|_| Error::internal("the floor's thread panicked"))?.map_err(|e| Error::io("floor", &e))
}

/// The answer to INIT: as our own mounts give it.
fn negotiate(config: &mut KernelConfig) -> std::io::Result<()> {
    for flag in InitFlags::from_bits_retain(kernel::WANTED).iter() {
        // What this kernel lacks, ours goes without as well.
        let _ = config.add_capabilities(flag);
    }
    let refused = |what: &str, near| std::io::Error::other(format!("the kernel refuses {what}; it would take {near}"));
    config.set_max_write(kernel::MAX_WRITE).map_err(|n| refused("max_write", n))?;
    config.set_max_background(kernel::MAX_BACKGROUND).map_err(|n| refused("max_background", n.into()))?;
    config.set_congestion_threshold(kernel::MAX_BACKGROUND / 4 * 3).map_err(|n| refused("congestion_threshold", n.into()))?;
    Ok(())
}
