//! Recovery of what a fenced, corrupt or returned node still holds: an unshipped tail becomes a workspace of its own.

use std::sync::Arc;

use futures::future::BoxFuture;
use hiloop_journal::State as JournalState;
use hiloop_manifest::tree::RootRef;
use hiloop_types::{Error, ErrorKind, Name, NameKind, ROOT_INO, Result, Seqno, Session, WriterEpoch};
use serde::Serialize;

use super::attach::Opening;
use super::tail::Tail;
use super::{AttachRequest, Attached, Engine, OpenStore, journal_stopped};
use crate::catalog::{BaseRoot, FORMAT, Found, Head, Intent, IntentKind, LostWindow, Parent, ParentKind};
use crate::front::Front;
use crate::layer::Layer;
use crate::record::StreamDoc;
use crate::workspace::{INO_RESERVE, Workspace, release_head, replicate};

/// A tail that became a workspace.
#[derive(Clone, Debug, Serialize)]
pub struct Recovered {
    /// The new workspace.
    pub name: Name,
    /// The workspace whose tail it holds.
    pub from: Name,
    /// Epoch of the opening that wrote the tail.
    pub epoch: WriterEpoch,
    /// Operations in it.
    pub operations: u64,
    /// Bytes that they brought.
    pub bytes: u64,
}

impl Engine {
    /// Turns every tail of `store` that no head will take up any more into a workspace `<name>-recovered-<epoch>`, published and released.
    /// A tail whose head still names its session is left to the next mount, unless the journal was damaged: then it may end too early,
    /// and becomes a workspace beside the one that it belonged to.
    ///
    /// # Errors
    /// `Closed` where the journal is read-only; those of the store and of the journal. A tail that cannot be recovered keeps no other from
    /// it: its error comes at the end and names what was made.
    pub fn recover<'a>(&'a self, store_url: &'a str) -> BoxFuture<'a, Result<Vec<Recovered>>> {
        Box::pin(async move {
            let store = self.store(store_url).await?;
            if let JournalState::ReadOnly(why) = self.0.node.journal.state() {
                return Err(journal_stopped(&why).at(self.0.options.directory.display()));
            }
            let _alone = self.0.recovering.lock().await;
            let mut sessions: Vec<(Name, WriterEpoch, Session, bool)> = self
                .0
                .tails
                .lock()
                .values()
                .filter(|t| t.stream.doc.store == store_url && !t.is_done())
                .map(|t| (t.stream.doc.name.clone(), t.stream.doc.epoch, t.stream.doc.session, t.stream.foreign))
                .collect();
            sessions.sort();
            let (mut out, mut failed) = (Vec::new(), None);
            for (name, _, session, foreign) in sessions {
                let head = store.catalog.get::<Head>(name.as_str()).await?;
                if head.is_some_and(|h| {
                    h.doc.session == Some(session) && !h.doc.tombstone && h.doc.release.is_none() && !foreign && !self.0.cut_short
                }) {
                    continue;
                }
                let Some(tail) = self.0.tails.lock().get(&session).cloned() else { continue };
                match self.recover_tail(&store, store_url, tail).await {
                    Ok(made) => out.extend(made),
                    // Nothing else would come through either.
                    Err(e) if matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Denied | ErrorKind::Closed) => return Err(e),
                    Err(e) => {
                        tracing::error!(workspace = %name, error = %e, "a tail cannot be recovered; the others can");
                        failed.get_or_insert(e);
                    }
                }
            }
            match failed {
                None => Ok(out),
                Some(e) if out.is_empty() => Err(e),
                Some(e) => {
                    let made: Vec<&str> = out.iter().map(|r: &Recovered| r.name.as_str()).collect();
                    Err(e.at(format!("recover, which made {}", made.join(", "))))
                }
            }
        })
    }

    /// The published tree that the tail stands on: what the take-over cut off, which is what collection keeps (`protocols.md` 7.1). This
    /// node may have seen less confirmed than it published.
    async fn protected_root(&self, store: &OpenStore, tail: &Tail) -> Result<(Option<RootRef>, Seqno, Vec<BaseRoot>)> {
        let old = &tail.stream.doc;
        let head = store.catalog.get::<Head>(old.name.as_str()).await?.map(|f| f.doc);
        if let Some(h) = head.as_ref().filter(|h| h.session == Some(old.session)) {
            return Ok((h.root, Seqno(h.sequence), h.bases.clone()));
        }
        let pending = head.and_then(|h| h.cut_off).filter(|c| c.session == Some(old.session));
        let cut_off = match pending {
            Some(c) => Some(c),
            None => store.catalog.cut_off(&old.name, old.epoch).await?.map(|f| f.doc).filter(|c| c.session == Some(old.session)),
        };
        match cut_off {
            Some(c) => Ok((c.root, Seqno(c.sequence), c.bases)),
            None => Err(Error::not_found(format!(
                "what workspace {} had published in epoch {} is protected by nothing any more",
                old.name, old.epoch
            ))
            .hint("the workspace was deleted, or the tail is older than 30 days: its tree may be collected")),
        }
    }

    /// `None` where all of it turns out to be published: its last confirmation was lost.
    async fn recover_tail(&self, store: &OpenStore, store_url: &str, tail: Tail) -> Result<Option<Recovered>> {
        let old = &tail.stream.doc;
        let (root, published, bases) = self.protected_root(store, &tail).await?;
        let folded = tail.fold(published)?;
        if folded.layers.is_empty() && folded.active.is_empty() {
            self.journal_closing(old.session)?;
            self.0.tails.lock().remove(&old.session);
            self.forget_stream(old.session)?;
            return Ok(None);
        }
        let (bytes, operations) = folded.backlog();
        let intent = Intent {
            format: FORMAT,
            nonce: store.catalog.nonce(),
            holder: self.0.options.node.to_string(),
            kind: IntentKind::Fork { root, bases: bases.clone() },
            created: store.catalog.now(),
        };
        store.catalog.create(&intent).await?;
        let session = Session(self.0.env.random_u64());
        let base_name = format!("{}-recovered-{}", old.name, old.epoch);
        let mut head = Head {
            format: FORMAT,
            name: old.name.clone(),
            epoch: WriterEpoch(1),
            session: Some(session),
            node: Some(self.0.options.node.clone()),
            root,
            // Published over before anybody else opens it.
            front: Front::default(),
            sequence: 0,
            parent: Some(Parent { kind: ParentKind::Tail, name: old.name.clone(), epoch: old.epoch, sequence: folded.last.0 }),
            bases,
            inode_limit: folded.next_ino.max(ROOT_INO.0 + 1) + INO_RESERVE,
            quota: None,
            domain: old.domain.clone(),
            claim: None,
            claimed: None,
            nonce: store.catalog.nonce(),
            release: None,
            cut_off: None,
            tombstone: false,
            created: store.catalog.now(),
            lost_window: Some(LostWindow::None),
        };
        let mut version = None;
        for attempt in 0..100u32 {
            let name = if attempt == 0 { base_name.clone() } else { format!("{base_name}-{attempt}") };
            head.name = Name::new(NameKind::Workspace, name)?;
            if let Ok(v) = store.catalog.create_head(&head).await? {
                version = Some(v);
                break;
            }
        }
        let version = version.ok_or_else(|| Error::conflict(format!("a hundred workspaces are named {base_name} already")))?;
        self.journal_opening(&StreamDoc {
            store: store_url.to_owned(),
            name: head.name.clone(),
            epoch: head.epoch,
            session,
            nonce: head.nonce,
            root,
            bases: head.bases.clone(),
            next_ino: folded.next_ino,
            domain: head.domain.clone(),
        })
        .await?;
        let request = AttachRequest::new(store_url, head.name.clone())?;
        let opening = Opening {
            head: Found { doc: head.clone(), version },
            nonces: vec![head.nonce],
            folded: Some(folded),
            // Records of the tail's own stream: their numbers are below what the new one will be given.
            sequence: Seqno(0),
            lost_window: LostWindow::None,
            fresh: false,
        };
        let workspace = self.build(store, &request, head.clone(), &opening, None).await?;
        let key = (store_url.to_owned(), head.name.clone());
        self.0.workspaces.lock().insert(key.clone(), Attached { workspace: workspace.clone(), draining: false });
        self.0.tails.lock().remove(&session);
        self.0.env.spawn(replicate(workspace.0.clone()));
        workspace.flush().await?;
        workspace.0.stop_writing(crate::workspace::Standing::Closed);
        release_head(&workspace.0).await?;
        store.catalog.remove::<Intent>(&intent.nonce.to_string()).await?;
        self.journal_closing(session)?;
        self.journal_closing(old.session)?;
        self.0.workspaces.lock().remove(&key);
        self.0.tails.lock().remove(&old.session);
        self.forget_stream(old.session)?;
        self.forget_stream(session)?;
        Ok(Some(Recovered { name: head.name, from: old.name.clone(), epoch: old.epoch, operations, bytes }))
    }
}

impl Workspace {
    /// The layers as they are now, oldest first.
    pub(super) fn layers(&self) -> Vec<Arc<Layer>> {
        let s = self.0.state.read();
        let mut active = s.active.clone();
        active.last = s.accepted;
        s.sealed.iter().cloned().chain((!active.is_empty()).then(|| Arc::new(active))).collect()
    }
}
