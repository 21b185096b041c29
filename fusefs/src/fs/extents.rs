//! Where a file has bytes and where it has holes.

use std::ops::ControlFlow;

use hiloop_engine::workspace::Read;
use hiloop_manifest::schema::{Block, Source};
use hiloop_types::{Ino, limits};

use super::FsResult;

/// A run of a file, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First byte.
    pub from: u64,
    /// The byte behind it.
    pub to: u64,
}

/// What counts as a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// Space that is not allocated (quota, `st_blocks`).
    Unallocated,
    /// Also space that was reserved but never written (SEEK_HOLE, as ext4 answers).
    Unwritten,
}

/// Calls `f` for each run of `from..to` that is no hole, ascending, until it breaks.
pub fn filled(r: &impl Read, ino: Ino, from: u64, to: u64, holes: Holes, mut f: impl FnMut(Run) -> ControlFlow<()>) -> FsResult<()> {
    if from >= to {
        return Ok(());
    }
    let mut step = |n: u64, block: &Block| -> bool {
        let base = n.saturating_mul(limits::BLOCK);
        if base >= to {
            return false;
        }
        for p in block.pieces() {
            if holes == Holes::Unwritten && p.source == Source::Zero {
                continue;
            }
            let run = Run { from: (base + u64::from(p.start)).max(from), to: (base + u64::from(p.end())).min(to) };
            if run.from < run.to && f(run).is_break() {
                return false;
            }
        }
        true
    };
    r.blocks_from(ino, from / limits::BLOCK, &mut step)?;
    Ok(())
}

/// Bytes of `from..to` that are not allocated.
pub fn unallocated(r: &impl Read, ino: Ino, from: u64, to: u64) -> FsResult<u64> {
    let mut free = to.saturating_sub(from);
    filled(r, ino, from, to, Holes::Unallocated, |run| {
        free -= run.to - run.from;
        ControlFlow::Continue(())
    })?;
    Ok(free)
}
