//! Passes over everything that names a tree, until one shows no new name (`protocols.md` 7.1, 7.2).

use std::collections::{BTreeSet, HashMap, HashSet};

use hiloop_manifest::tree::RootRef;
use hiloop_types::{Error, Nonce, Owner, PackId, Result, ResultExt, Session, WriterEpoch};

use super::mark::Marks;
use super::{CUT_OFF_KEPT, Held, TOMBSTONE_KEPT};
use crate::catalog::{BaseDoc, BaseRoot, CutOff, Deleted, Document, Head, Intent, IntentKind, Lease, SnapshotDoc};
use crate::context::StoreContext;

/// Passes before a run gives up: names are then made faster than they can be read.
const PASSES_MAX: u64 = 256;

/// What protects packs that no tree names yet.
#[derive(Default)]
pub(super) struct Guards {
    /// New packs of rewriters.
    packs: HashSet<PackId>,
    /// Publishers of bases.
    publishers: HashSet<(Owner, Session)>,
    /// Published sequence of a live head's (epoch, session), read with the root first marked. Packs above it may be published next.
    limits: HashMap<(Owner, WriterEpoch, Session), u64>,
}

impl Guards {
    pub(super) fn covers(&self, pack: &PackId) -> bool {
        let limit = self.limits.get(&(pack.owner, pack.epoch, pack.session));
        limit.is_some_and(|l| pack.sequence > *l) || self.packs.contains(pack) || self.publishers.contains(&(pack.owner, pack.session))
    }
}

/// The state of all passes of one run.
pub(super) struct Passes<'a> {
    ctx: &'a StoreContext,
    /// Deletions that were over before packs were listed.
    over: &'a HashSet<Nonce>,
    pub(super) marks: Marks,
    pub(super) guards: Guards,
    pub(super) names: HashSet<String>,
    pub(super) passes: u64,
    /// Of the last pass.
    pub(super) held: Vec<Held>,
    /// Keys of cut-offs past their time.
    pub(super) expired: BTreeSet<String>,
    /// Keys of tombstones past their time.
    pub(super) graves: BTreeSet<String>,
    fresh: bool,
}

impl<'a> Passes<'a> {
    pub(super) fn new(ctx: &'a StoreContext, marks: Marks, over: &'a HashSet<Nonce>) -> Self {
        Self {
            ctx,
            over,
            marks,
            guards: Guards::default(),
            names: HashSet::new(),
            passes: 0,
            held: Vec::new(),
            expired: BTreeSet::new(),
            graves: BTreeSet::new(),
            fresh: false,
        }
    }

    /// Takes the intents that stood before anything was marked.
    pub(super) async fn first<'d>(&mut self, intents: impl Iterator<Item = &'d Intent>) -> Result<()> {
        for intent in intents {
            self.intent(intent).await?;
        }
        Ok(())
    }

    /// Marks what an intent is about to name, or protects what it is about to put.
    async fn intent(&mut self, intent: &Intent) -> Result<()> {
        self.name(key(intent));
        match &intent.kind {
            IntentKind::Fork { root, bases } => self.trees(root.as_ref(), bases).await.at(key(intent)),
            IntentKind::Repack { pack } => {
                self.guards.packs.insert(*pack);
                Ok(())
            }
        }
    }

    /// Marks until nothing new shows.
    pub(super) async fn run(&mut self) -> Result<()> {
        loop {
            self.passes += 1;
            self.fresh = false;
            self.held.clear();
            self.pass().await?;
            if !self.fresh {
                return Ok(());
            }
            if self.passes >= PASSES_MAX {
                return Err(Error::unavailable(format!("{PASSES_MAX} passes over the names each showed new ones"))
                    .hint("nothing was deleted; collect when fewer workspaces are made"));
            }
        }
    }

    /// Names are removed only behind their deletion object, so these are listed after the names; whoever makes a name holds an intent
    /// until it stands, so intents come last.
    async fn pass(&mut self) -> Result<()> {
        let c = &self.ctx.catalog;
        for found in c.list::<Head>().await? {
            self.head(&found.doc).await?;
        }
        for found in c.list_with_tombstones::<SnapshotDoc>().await? {
            let d = found.doc;
            if let Some(at) = d.deleted {
                self.tombstone(&d, at);
                continue;
            }
            self.name(format!("{}{}/{}", SnapshotDoc::PREFIX, d.id(), d.nonce));
            self.trees(Some(&d.root), &d.bases).await.at(key(&d))?;
        }
        for found in c.list_with_tombstones::<BaseDoc>().await? {
            match found.doc.deleted {
                Some(at) => self.tombstone(&found.doc, at),
                None => self.base(&found.doc).await?,
            }
        }
        for found in c.list::<CutOff>().await? {
            self.cut_off(&found.doc).await?;
        }
        for found in c.list::<Deleted>().await? {
            let d = found.doc;
            if !self.over.contains(&d.nonce) {
                self.name(key(&d));
                self.trees(d.root.as_ref(), &d.bases).await.at(key(&d))?;
            }
        }
        for found in c.list::<Lease>().await? {
            let d = found.doc;
            self.name(key(&d));
            self.hold("lease", Some(d.nonce), None, &d.holder, d.created);
            self.trees(Some(&d.root), &d.bases).await.at(key(&d))?;
        }
        for found in c.list::<Intent>().await? {
            let d = found.doc;
            let what = match &d.kind {
                IntentKind::Fork { .. } => "fork",
                IntentKind::Repack { .. } => "repack",
            };
            self.hold(what, Some(d.nonce), None, &d.holder, d.created);
            self.intent(&d).await?;
        }
        Ok(())
    }

    async fn head(&mut self, head: &Head) -> Result<()> {
        if head.tombstone {
            return Ok(());
        }
        // A head that moves keeps its birth; one that was deleted and made again is another name.
        self.name(format!("{} {} {:?}", key(head), head.created, head.parent));
        if let Some(session) = head.session {
            self.guards.limits.entry((Owner::workspace(&head.name), head.epoch, session)).or_insert(head.sequence);
        }
        self.trees(head.root.as_ref(), &head.bases).await.at(key(head))?;
        match &head.cut_off {
            Some(c) => self.trees(c.root.as_ref(), &c.bases).await.at(key(head)),
            None => Ok(()),
        }
    }

    async fn base(&mut self, base: &BaseDoc) -> Result<()> {
        self.name(format!("{} {}", key(base), base.session));
        if base.root.is_none() {
            self.guards.publishers.insert((Owner::base(&base.name), base.session));
            self.hold("publish", None, Some(base.name.to_string()), &base.holder, base.created);
        }
        self.trees(base.root.as_ref(), &base.reuses).await.at(key(base))
    }

    async fn cut_off(&mut self, cut: &CutOff) -> Result<()> {
        if cut.at + CUT_OFF_KEPT.as_secs() < self.ctx.catalog.now() {
            self.expired.insert(key(cut));
            return Ok(());
        }
        self.name(key(cut));
        self.trees(cut.root.as_ref(), &cut.bases).await.at(key(cut))
    }

    fn tombstone<T: Document>(&mut self, doc: &T, at: u64) {
        if at + TOMBSTONE_KEPT.as_secs() < self.ctx.catalog.now() {
            self.graves.insert(key(doc));
        }
    }

    async fn trees(&mut self, root: Option<&RootRef>, bases: &[BaseRoot]) -> Result<()> {
        for root in root.into_iter().chain(bases.iter().map(|b| &b.root)) {
            self.marks.tree(self.ctx, root).await?;
        }
        Ok(())
    }

    fn name(&mut self, name: String) {
        self.fresh |= self.names.insert(name);
    }

    fn hold(&mut self, what: &'static str, nonce: Option<Nonce>, name: Option<String>, holder: &str, created: u64) {
        let age = self.ctx.catalog.now().saturating_sub(created);
        self.held.push(Held { what, nonce, name, holder: holder.to_owned(), age });
    }
}

fn key<T: Document>(doc: &T) -> String {
    format!("{}{}", T::PREFIX, doc.id())
}
