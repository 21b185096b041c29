//! The floor: a file system in memory that does nothing but answer, mounted with the flags, timeouts and transport of ours
//! ([`hiloop_fusefs::fuse::kernel`]). What it costs is the price of FUSE itself; the rest is ours to save.
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

use hiloop_env::Env;
use hiloop_fusefs::fuse::{detach, find_mount, kernel};
use hiloop_types::{Error, Result};

use adapter::{Adapter, Requests};

/// Type of the mount in mountinfo.
const FSTYPE: &str = "fuse.hiloop-floor";

/// Serves the floor on an empty directory until standard input ends.
///
/// # Errors
/// Where it cannot mount, or the mount stops answering.
pub fn serve(at: &Path, env: &Env) -> Result<()> {
    let device = kernel::attach(at, "floor", FSTYPE, kernel::Access { allow_other: true, ..kernel::Access::default() })?;
    let requests = Arc::new(Requests::default());
    let session =
        kernel::session(Adapter::new(requests.clone(), env.clone()), device, true).map_err(|e| Error::io("FUSE handshake", &e))?;
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
