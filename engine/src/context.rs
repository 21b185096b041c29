//! What every command over a store needs: its catalog, a way to read trees, and a name for messages.

use std::sync::Arc;

use futures::future::BoxFuture;
use hiloop_env::Env;
use hiloop_manifest::DomainKey;
use hiloop_store::Store;
use hiloop_types::{Name, NameKind, Result};

use crate::catalog::{Catalog, DomainDoc, PUBLIC_DOMAIN};
use crate::hydrate::{DomainKeys, Hydrator, Memory};

/// A store as the commands see it that need no node state. Cheap to clone.
#[derive(Clone)]
pub struct StoreContext {
    /// Heads, bases and the other documents.
    pub catalog: Catalog,
    /// Nodes and chunks.
    pub hydrator: Hydrator,
    /// Who runs the command (`host:pid` or a node's name), written into intents and leases for people to read.
    pub holder: String,
    progress: Option<ProgressFn>,
}

/// Is told what a long command works on and how much of it is done.
pub type ProgressFn = Arc<dyn Fn(&'static str, u64) + Send + Sync>;

impl StoreContext {
    /// A context with memory of its own and no disk cache.
    pub fn new(store: Store, env: Env, holder: impl Into<String>) -> Self {
        let hydrator = Hydrator::new(store.clone(), Memory::default(), None);
        Self { catalog: Catalog::new(store, env), hydrator, holder: holder.into(), progress: None }
    }
    /// A context over what a node has open already.
    pub fn over(catalog: Catalog, hydrator: Hydrator, holder: impl Into<String>) -> Self {
        Self { catalog, hydrator, holder: holder.into(), progress: None }
    }
    /// The same context, telling `progress` now and then how far `gc`, `fsck`, `du` and `export` are.
    #[must_use]
    pub fn with_progress(mut self, progress: ProgressFn) -> Self {
        self.progress = Some(progress);
        self
    }
    pub(crate) fn tell(&self, what: &'static str, done: u64) {
        if let Some(progress) = &self.progress {
            progress(what, done);
        }
    }
    /// The store below.
    pub fn store(&self) -> &Store {
        self.catalog.store()
    }
    /// The surroundings.
    pub fn env(&self) -> &Env {
        self.catalog.env()
    }

    /// Keys to read the chunks of a tree of `domain` with. Writes nothing.
    ///
    /// # Errors
    /// Those of the store; `Corrupt` for a key that is none.
    pub fn read_keys<'a>(&'a self, domain: &'a Name) -> BoxFuture<'a, Result<DomainKeys>> {
        Box::pin(async move {
            let public = Name::new(NameKind::Domain, PUBLIC_DOMAIN)?;
            let (public, own) = futures::try_join!(self.read_key(&public), self.read_key(domain))?;
            Ok(DomainKeys { public, own })
        })
    }

    /// A domain without a document has no chunks yet, so any key will do: with this one nothing verifies.
    async fn read_key(&self, domain: &Name) -> Result<DomainKey> {
        match self.catalog.get::<DomainDoc>(domain.as_str()).await? {
            Some(found) => found.doc.key_bytes().map(DomainKey),
            None => Ok(DomainKey([0; 32])),
        }
    }
}
