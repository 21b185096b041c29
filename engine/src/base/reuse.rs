//! Chunks of earlier bases that a new one may reference.

use std::collections::HashMap;

use hiloop_manifest::FrameLoc;
use hiloop_manifest::schema::ChunkDomain;
use hiloop_types::{ChunkId, Result, ResultExt};

use super::BaseRequest;
use crate::catalog::{BaseDoc, BaseRoot};
use crate::context::StoreContext;
use crate::traverse::{Traverse, chunks_of};

/// Newest bases whose chunks are looked at.
const BASES: usize = 2;
/// Chunks remembered, about 100 bytes each: a base of four million chunks is a terabyte.
const CHUNKS_MAX: usize = 4_000_000;

/// Where known chunks lie.
pub(super) type Reusable = HashMap<ChunkId, FrameLoc>;

/// The newest bases of the request's domain.
pub(super) async fn choose(ctx: &StoreContext, request: &BaseRequest) -> Result<Vec<BaseRoot>> {
    let mut bases: Vec<BaseDoc> = ctx.catalog.list::<BaseDoc>().await?.into_iter().map(|f| f.doc).collect();
    bases.retain(|b| b.domain == request.domain && b.root.is_some());
    bases.sort_by(|a, b| (b.created, &b.name).cmp(&(a.created, &a.name)));
    bases.truncate(BASES);
    Ok(bases.into_iter().filter_map(|b| Some(BaseRoot { root: b.root?, name: b.name })).collect())
}

/// True where every one of these bases exists with this root.
pub(super) async fn still_there(ctx: &StoreContext, bases: &[BaseRoot]) -> Result<bool> {
    for base in bases {
        let found = ctx.catalog.get::<BaseDoc>(base.name.as_str()).await?;
        if found.and_then(|f| f.doc.root) != Some(base.root) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads the places of all chunks of these bases, as far as memory goes.
pub(super) async fn load(ctx: &StoreContext, bases: &[BaseRoot], domain: ChunkDomain) -> Result<Reusable> {
    let mut known = Reusable::new();
    for base in bases {
        let mut walk = Traverse::new(&base.root);
        while let Some((_, node)) = walk.next(&ctx.hydrator, |_| known.len() < CHUNKS_MAX).await {
            chunks_of(&*node.at(format!("bases/{}", base.name))?, |_, chunk| {
                if chunk.domain == domain {
                    known.entry(chunk.id).or_insert(chunk.at);
                }
            })?;
        }
    }
    Ok(known)
}
