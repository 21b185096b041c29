//! Tests of the whole journal over the simulated disk, and a few over the real one.

mod basics;
mod crash;
mod damage;
mod fixture;
mod real;
mod world;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hiloop_env::Env;
use hiloop_types::{Result, Seqno};

use crate::{Journal, JournalOptions, OnDamage, RecoveryReport, SimDisk, StagedRef};

pub(super) fn root() -> PathBuf {
    PathBuf::from("/node")
}

/// Small files, so that a few records fill one.
pub(super) fn small() -> JournalOptions {
    JournalOptions {
        segment_size: 4096,
        slab_size: 8192,
        preallocate: 2,
        reserve: 1,
        staging_dirty: 6000,
        background: false,
        on_damage: OnDamage::ReadOnly,
        fault: None,
    }
}

/// A record as it came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) seqno: Seqno,
    pub(super) stream: u64,
    pub(super) kind: u8,
    pub(super) body: Vec<u8>,
    pub(super) staged: Vec<StagedRef>,
}

pub(super) fn open_with(disk: &SimDisk, env: &Env, options: JournalOptions, min_next: u64) -> Result<(Journal, RecoveryReport, Vec<Seen>)> {
    open_at(&root(), Arc::new(disk.clone()), env, options, min_next)
}

pub(super) fn open_at(
    dir: &Path,
    disk: Arc<dyn crate::Disk>,
    env: &Env,
    options: JournalOptions,
    min_next: u64,
) -> Result<(Journal, RecoveryReport, Vec<Seen>)> {
    let mut seen = Vec::new();
    let (journal, report) = Journal::open(dir, disk, env, options, Seqno(min_next), &mut |r| {
        seen.push(Seen { seqno: r.seqno, stream: r.stream, kind: r.kind, body: r.body.to_vec(), staged: r.staged.to_vec() });
        Ok(())
    })?;
    Ok((journal, report, seen))
}
