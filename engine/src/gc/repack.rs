//! Rewriting packs below half live (`protocols.md` 5.3): intent, upload, forwards, intent removed. The old packs stay until a later run
//! that lists the forward before anything else; all their live frames are in one new pack.

use std::collections::BTreeMap;

use bytes::Bytes;
use hiloop_manifest::pack::{Frame, PackBuilder, PackDirectory, PackHeader, PackKind, Tail};
use hiloop_types::limits::PACK_MAX;
use hiloop_types::{Error, ErrorKind, Name, Owner, PackId, Result, ResultExt};

use super::mark::Marks;
use super::{GcReport, Listed};
use crate::catalog::{FORMAT, Intent, IntentKind};
use crate::context::StoreContext;
use crate::forward::Forward;
use crate::ship::put_pack;

/// A new pack and the old ones whose live frames it holds.
struct Rewrite {
    pack: PackBuilder,
    from: Vec<PackId>,
}

/// Rewrites all of `sparse`.
pub(super) async fn repack(ctx: &StoreContext, marks: &Marks, sparse: &[Listed], report: &mut GcReport) -> Result<()> {
    let mut open: BTreeMap<(Owner, PackKind), Rewrite> = BTreeMap::new();
    for old in sparse {
        let key = old.id.key();
        // Another collector may have finished with it since.
        let Some(object) = ctx.store().get(&key).await? else { continue };
        let live = match live_frames(marks, &old.id, &object.bytes).at(&key) {
            Ok(live) => live,
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                report.damaged.push(e.to_string());
                continue;
            }
            Err(e) => return Err(e),
        };
        let slot = (old.id.owner, live.kind);
        let room = |r: &Rewrite| r.pack.len() + marks.live_bytes(&old.id) <= PACK_MAX && !r.pack.is_full();
        if let Some(full) = open.remove(&slot) {
            if room(&full) {
                open.insert(slot, full);
            } else {
                finish(ctx, full, report).await?;
            }
        }
        let rewrite = open.entry(slot).or_insert_with(|| {
            // A key of its own beside the old one's: the same session and sequence, another attempt.
            let id = PackId { attempt: ctx.env().random_u32(), ..old.id };
            Rewrite { pack: PackBuilder::new(id, &live.owner, live.kind), from: Vec::new() }
        });
        for frame in live.frames() {
            rewrite.pack.add_frame(&frame)?;
        }
        rewrite.from.push(old.id);
    }
    for (_, rewrite) in open {
        finish(ctx, rewrite, report).await?;
    }
    Ok(())
}

async fn finish(ctx: &StoreContext, rewrite: Rewrite, report: &mut GcReport) -> Result<()> {
    let (id, from) = (*rewrite.pack.id(), rewrite.from);
    let intent = Intent {
        format: FORMAT,
        nonce: ctx.catalog.nonce(),
        holder: ctx.holder.clone(),
        kind: IntentKind::Repack { pack: id },
        created: ctx.catalog.now(),
    };
    ctx.catalog.create(&intent).await?;
    let bytes = rewrite.pack.finish();
    let size = bytes.len() as u64;
    let done = async {
        put_pack(ctx.store(), &id, bytes).await?;
        for old in &from {
            // Where another collector was first, its forward stands and this copy is never named.
            report.repacked += u64::from(Forward::new(*old, vec![id]).create(ctx.store()).await?);
        }
        Ok(())
    }
    .await;
    report.bytes_repacked += size;
    if done.as_ref().is_err_and(|e: &Error| e.kind() == ErrorKind::Unavailable) {
        // A forward whose answer was lost may still appear: until somebody drops the intent, its pack stays.
        return done;
    }
    ctx.catalog.remove::<Intent>(&intent.nonce.to_string()).await?;
    done
}

/// The marked frames of one pack.
struct Live {
    owner: Name,
    kind: PackKind,
    entries: Vec<hiloop_manifest::pack::DirectoryEntry>,
    object: Bytes,
}

impl Live {
    fn frames(&self) -> impl Iterator<Item = Frame<'_>> {
        self.entries.iter().map(|e| Frame {
            id: e.id,
            codec: e.loc.codec,
            plain_len: e.loc.plain_len,
            stored: &self.object[e.loc.offset as usize..][..e.loc.stored_len as usize],
        })
    }
}

fn live_frames(marks: &Marks, id: &PackId, object: &Bytes) -> Result<Live> {
    let header = PackHeader::decode(object)?;
    let Tail::Whole(directory) = PackDirectory::decode(id, object.len() as u64, object)? else {
        return Err(Error::corrupt("the pack is shorter than its directory"));
    };
    let entries: Vec<_> = directory.in_order().into_iter().filter(|e| marks.is_live(&e.loc)).collect();
    for e in &entries {
        e.check(&object[e.loc.offset as usize..][..e.loc.stored_len as usize])?;
    }
    Ok(Live { owner: header.owner, kind: directory.kind(), entries, object: object.clone() })
}
