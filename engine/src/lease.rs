//! Protection for readers: a lease keeps a tree from collection while it is exported, compared or checked (`protocols.md` 7.5).

use futures::future::BoxFuture;
use hiloop_env::Env;
use hiloop_types::{Error, Nonce, Result};

use crate::catalog::{self, FORMAT, REDO};
use crate::context::StoreContext;
use crate::look::{SourceRoot, look_up};

/// A tree that cannot be collected until this is finished or dropped.
pub struct ReadLease {
    ctx: StoreContext,
    source: SourceRoot,
    /// Absent for an empty workspace, which has nothing to lose.
    nonce: Option<Nonce>,
    /// Where it was taken: it may be dropped on a thread that is on no runtime.
    env: Env,
}

impl ReadLease {
    /// Puts a lease on what `source` names, and reads the name again: a root that went away or moved in between may be unprotected, so
    /// the lease is removed and taken anew.
    ///
    /// # Errors
    /// As [`resolve`](crate::look::resolve); `Conflict` where the source moves all the time.
    pub fn take<'a>(ctx: &'a StoreContext, source: &'a str) -> BoxFuture<'a, Result<Self>> {
        Box::pin(async move {
            let mut found = crate::look::resolve(ctx, source).await?;
            for _ in 0..REDO {
                let Some(root) = found.root else {
                    return Ok(Self { ctx: ctx.clone(), source: found, nonce: None, env: ctx.env().here() });
                };
                let doc = catalog::Lease {
                    format: FORMAT,
                    nonce: ctx.catalog.nonce(),
                    holder: ctx.holder.clone(),
                    root,
                    bases: found.bases.clone(),
                    created: ctx.catalog.now(),
                };
                ctx.catalog.create(&doc).await?;
                let lease = Self { ctx: ctx.clone(), source: found, nonce: Some(doc.nonce), env: ctx.env().here() };
                let again = look_up(ctx, lease.source.kind, &lease.source.name).await?;
                match again {
                    Some(now) if now.same_tree(&lease.source) => return Ok(lease),
                    Some(now) => found = now,
                    None => {
                        let gone = Error::not_found(format!("{} was deleted just now", lease.source.qualified())).at(ctx.store().name());
                        lease.remove().await?;
                        return Err(gone);
                    }
                }
                lease.remove().await?;
            }
            Err(Error::conflict(format!("{} moves faster than it can be read", found.qualified())).hint("take a snapshot and read that"))
        })
    }

    /// What is protected.
    pub fn source(&self) -> &SourceRoot {
        &self.source
    }

    /// Asks whether the lease still stands.
    ///
    /// # Errors
    /// `Closed` where somebody dropped it (`gc --drop`): what is read from now on may be gone, and what was read may be incomplete.
    pub fn check<'a>(&'a self) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Some(nonce) = self.nonce else { return Ok(()) };
            match self.ctx.catalog.get::<catalog::Lease>(&nonce.to_string()).await? {
                Some(_) => Ok(()),
                None => Err(Error::closed("the lease on this tree was dropped by a collector (ESTALE)").at(self.source.qualified())),
            }
        })
    }

    /// Ends the lease.
    ///
    /// # Errors
    /// As [`Self::check`], and those of the store.
    pub fn finish(self) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            self.check().await?;
            self.remove().await
        })
    }

    /// Ends the lease with the work that it was for, whatever came of that: the process may end before something in the background would.
    ///
    /// # Errors
    /// Those of the work; after it as [`Self::finish`].
    pub(crate) async fn end_with<T>(self, done: Result<T>) -> Result<T> {
        match done {
            Ok(value) => self.finish().await.map(|()| value),
            Err(e) => {
                if let Err(left) = self.remove().await {
                    tracing::warn!(error = %left, "a lease stays behind; `gc` lists it");
                }
                Err(e)
            }
        }
    }

    async fn remove(mut self) -> Result<()> {
        match self.nonce.take() {
            Some(nonce) => self.ctx.catalog.remove::<catalog::Lease>(&nonce.to_string()).await.map(drop),
            None => Ok(()),
        }
    }
}

impl Drop for ReadLease {
    /// Removes the lease in the background; where that fails `gc` lists it and `gc --drop` removes it.
    fn drop(&mut self) {
        let Some(nonce) = self.nonce.take() else { return };
        let catalog = self.ctx.catalog.clone();
        self.env.spawn(async move {
            if let Err(e) = catalog.remove::<catalog::Lease>(&nonce.to_string()).await {
                tracing::warn!(error = %e, lease = %nonce, "a lease stays behind");
            }
        });
    }
}
