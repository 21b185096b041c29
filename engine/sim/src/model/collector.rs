//! A collector: one run after the other, in the order of `engine/src/gc.rs`.

use std::collections::{BTreeMap, BTreeSet};

use super::store::{Content, Intent, Name, Nonce, PackKey, Put, Store, Tree};
use super::{Answer, Request};
use crate::rules::{Rule, Rules};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Deletions,
    EarlyForwards,
    Packs,
    FirstIntents,
    Forwards,
    Heads,
    Snapshots,
    Bases,
    CutOffs,
    Deleted,
    Intents,
    Decide,
    Delete,
    Unforward,
    Get,
    RepackIntent,
    RepackPut,
    RepackForward,
    /// Removes the intent of a rewrite.
    RepackRemove,
    Done,
}

/// A name, as far as a run tells names apart.
type Seen = (u8, u8, Nonce);

/// What one run knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Run {
    /// Deletions that were over before packs were listed.
    over: BTreeSet<Nonce>,
    /// Packs that had a forward before anything else was listed.
    early: BTreeSet<PackKey>,
    packs: BTreeSet<PackKey>,
    forwards: BTreeMap<PackKey, PackKey>,
    marks: BTreeSet<(PackKey, usize)>,
    /// Published sequence by (workspace, epoch, session), as first seen.
    limits: BTreeMap<(u8, u8, u8), u8>,
    /// New packs of rewriters.
    news: BTreeSet<PackKey>,
    /// Publishers of bases.
    publishers: BTreeSet<(u8, u8)>,
    names: BTreeSet<Seen>,
    fresh: bool,
    doomed: BTreeSet<PackKey>,
    unnamed: BTreeSet<PackKey>,
    sparse: Option<PackKey>,
    live: Content,
}

/// See [the module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collector {
    tag: u8,
    runs: u8,
    repacks: bool,
    at: At,
    run: Run,
}

impl Collector {
    /// A collector that runs `runs` times; with `repacks` it rewrites a pack below half live.
    pub fn new(tag: u8, runs: u8, repacks: bool) -> Self {
        Self { tag, runs, repacks, at: At::Deletions, run: Run::default() }
    }

    /// True where it does nothing more.
    pub fn is_done(&self) -> bool {
        self.at == At::Done
    }

    fn go(&self, at: At) -> Self {
        Self { at, ..self.clone() }
    }

    fn with(&self, at: At, change: impl FnOnce(&mut Run)) -> Self {
        let mut next = self.go(at);
        change(&mut next.run);
        next
    }

    fn next_run(&self) -> Self {
        let runs = self.runs - 1;
        Self { runs, at: if runs == 0 { At::Done } else { At::Deletions }, run: Run::default(), ..self.clone() }
    }

    fn intent(&self) -> Nonce {
        Nonce(self.tag, 100 + self.runs)
    }

    fn new_pack(&self, old: PackKey) -> PackKey {
        PackKey { attempt: 100 + 10 * self.tag + self.runs, ..old }
    }

    /// Takes the next step.
    pub fn step(&self, r: &mut Request<'_>) {
        let s = r.store();
        let rules = r.rules;
        match self.at {
            At::Deletions => {
                let gone = |d: &super::store::Deleted| s.nonce(d.name) != Some(d.of);
                let kept = |d: &super::store::Deleted| d.owned && rules.hold(Rule::DeletionCutsOff);
                let over = s.deleted.iter().filter(|(_, d)| gone(d) && !kept(d)).map(|(n, _)| *n).collect();
                r.read("lists deletions and looks for their names", self.with(At::EarlyForwards, |run| run.over = over));
            }
            At::EarlyForwards => {
                let early = s.forwards.keys().copied().collect();
                r.read("lists forwards", self.with(At::Packs, |run| run.early = early));
            }
            At::Packs => {
                let packs = s.packs.keys().copied().collect();
                r.read("lists packs", self.with(At::FirstIntents, |run| run.packs = packs));
            }
            At::FirstIntents => {
                let next = self.with(At::Forwards, |run| run.intents(s, rules, rules.hold(Rule::FirstIntentsMark)));
                r.read("lists intents behind the packs", next);
            }
            At::Forwards => {
                let known = |from: &PackKey| rules.hold(Rule::ForwardsBehindIntents) || self.run.early.contains(from);
                let forwards = s.forwards.iter().filter(|(from, _)| known(from)).map(|(from, to)| (*from, *to)).collect();
                r.read("reads forwards", self.with(At::Heads, |run| run.forwards = forwards));
            }
            At::Heads => r.read("marks from heads", self.with(At::Snapshots, |run| run.heads(s, rules))),
            At::Snapshots => r.read("marks from snapshots", self.with(At::Bases, |run| run.snapshots(s))),
            At::Bases => r.read("marks from bases", self.with(At::CutOffs, |run| run.bases(s, rules))),
            At::CutOffs => r.read("marks from cut-offs", self.with(At::Deleted, |run| run.cut_offs(s))),
            At::Deleted => r.read("marks from deletions", self.with(At::Intents, |run| run.deleted(s, rules))),
            At::Intents => {
                let mut next = self.with(At::Decide, |run| run.intents(s, rules, true));
                if next.run.fresh && rules.hold(Rule::RepeatPasses) {
                    next.at = At::Heads;
                }
                next.run.fresh = false;
                r.read("marks from intents and ends the pass", next);
            }
            At::Decide => r.read("follows forwards and decides", self.with(At::Delete, |run| run.decide(s, rules, self.repacks))),
            At::Delete => match self.run.doomed.first().copied() {
                Some(pack) => {
                    let next = self.with(At::Delete, |run| {
                        run.doomed.remove(&pack);
                    });
                    r.change("deletes a pack", next, |s| {
                        s.packs.remove(&pack);
                    });
                }
                None => r.read("has deleted what it could", self.go(At::Unforward)),
            },
            At::Unforward => match self.run.unnamed.first().copied() {
                Some(pack) => {
                    let next = self.with(At::Unforward, |run| {
                        run.unnamed.remove(&pack);
                    });
                    r.change("deletes a forward", next, |s| {
                        s.forwards.remove(&pack);
                    });
                }
                None if self.run.sparse.is_some() => r.read("goes on to rewrite a pack", self.go(At::Get)),
                None => r.read("ends its run", self.next_run()),
            },
            At::Get => match self.run.sparse.and_then(|old| s.packs.get(&old)) {
                Some(content) => {
                    let at = if rules.hold(Rule::RepackIntent) { At::RepackIntent } else { At::RepackPut };
                    let live = Content(content.0 & self.run.live.0);
                    r.read("reads the pack to rewrite", self.with(at, |run| run.live = live));
                }
                None => r.read("finds that the pack to rewrite is gone", self.next_run()),
            },
            At::RepackIntent => {
                if let Some(old) = self.run.sparse {
                    r.put("puts its intent for the new pack", Put::Intent(self.intent(), Intent::Repack(self.new_pack(old))));
                }
            }
            At::RepackPut => {
                if let Some(old) = self.run.sparse {
                    r.put("puts the new pack", Put::Pack(self.new_pack(old), self.run.live));
                }
            }
            At::RepackForward => {
                if let Some(old) = self.run.sparse {
                    r.put("puts the forward", Put::Forward(old, self.new_pack(old)));
                }
            }
            At::RepackRemove => {
                let intent = self.intent();
                r.change("removes its intent", self.next_run(), |s| {
                    s.intents.remove(&intent);
                });
            }
            At::Done => {}
        }
    }

    /// Goes on after a write.
    pub fn answered(&self, answer: Answer, rules: Rules) -> Self {
        match (self.at, answer) {
            (At::RepackIntent, Answer::Won) => self.go(At::RepackPut),
            (At::RepackPut, Answer::Won) => self.go(At::RepackForward),
            // The forward may still appear: its target stays protected until somebody drops the intent.
            (At::RepackForward, Answer::Unsettled) if rules.hold(Rule::RepackIntentUntilSettled) => self.next_run(),
            (At::RepackIntent, _) => self.next_run(),
            _ => self.go(At::RepackRemove),
        }
    }
}

impl Run {
    fn name(&mut self, kind: u8, of: u8, nonce: Nonce) {
        self.fresh |= self.names.insert((kind, of, nonce));
    }

    fn mark(&mut self, tree: &Tree) {
        self.marks.extend(tree.refs().map(|(chunk, pack)| (pack, chunk)));
    }

    fn mark_base(&mut self, base: Option<&Tree>, rules: Rules) {
        if let Some(base) = base.filter(|_| rules.hold(Rule::BaseRootsMarked)) {
            self.mark(base);
        }
    }

    fn heads(&mut self, s: &Store, rules: Rules) {
        for (w, head) in s.heads.iter().filter(|(_, h)| !h.tombstone) {
            self.name(0, *w, head.birth);
            if let Some(session) = head.session {
                self.limits.entry((*w, head.epoch, session)).or_insert(head.sequence);
            }
            self.mark(&head.root);
            self.mark_base(head.base.as_ref(), rules);
            if let Some(cut_off) = &head.cut_off {
                self.mark(&cut_off.root);
            }
        }
    }

    fn snapshots(&mut self, s: &Store) {
        for (n, snapshot) in &s.snapshots {
            self.name(1, *n, snapshot.nonce);
            self.mark(&snapshot.root);
        }
    }

    fn bases(&mut self, s: &Store, rules: Rules) {
        for (n, base) in &s.bases {
            self.name(2, *n, Nonce(base.session, 0));
            match &base.root {
                Some(root) => self.mark(root),
                None => {
                    self.publishers.insert((*n, base.session));
                }
            }
            self.mark_base(base.reuses.as_ref(), rules);
        }
    }

    fn cut_offs(&mut self, s: &Store) {
        for c in s.cutoffs.values() {
            self.name(3, c.workspace, Nonce(c.epoch, 0));
            self.mark(&c.root);
        }
    }

    fn deleted(&mut self, s: &Store, rules: Rules) {
        for (n, deleted) in s.deleted.iter().filter(|(n, _)| !self.over.contains(n)).map(|(n, d)| (*n, *d)).collect::<Vec<_>>() {
            self.name(4, 0, n);
            self.mark(&deleted.root);
            self.mark_base(deleted.base.as_ref(), rules);
        }
    }

    /// Takes up intents; as roots too where `mark`.
    fn intents(&mut self, s: &Store, rules: Rules, mark: bool) {
        for (n, intent) in &s.intents {
            match intent {
                Intent::Repack(pack) => {
                    self.news.insert(*pack);
                }
                Intent::Fork(root, base) if mark => {
                    self.mark(root);
                    self.mark_base(base.as_ref(), rules);
                }
                Intent::Fork(..) => {}
            }
            if mark {
                self.name(5, 0, *n);
            }
        }
    }

    fn covered(&self, pack: &PackKey, rules: Rules) -> bool {
        let publishing = match pack.owner {
            Name::Head(w) => {
                let limit = self.limits.get(&(w, pack.epoch, pack.session));
                rules.hold(Rule::LimitGuard) && limit.is_some_and(|l| pack.sequence > *l)
            }
            Name::Base(n) => self.publishers.contains(&(n, pack.session)),
            Name::Snapshot(_) => false,
        };
        publishing || self.news.contains(pack)
    }

    fn names_pack(&self, pack: &PackKey) -> bool {
        self.marks.iter().any(|(p, _)| p == pack)
    }

    /// Marks in successors what is named in rewritten packs; answers those that are not needed for it.
    fn follow(&mut self, s: &Store) -> BTreeSet<PackKey> {
        let mut ahead: Vec<(PackKey, usize)> = self.marks.iter().filter(|(p, _)| self.forwards.contains_key(p)).copied().collect();
        let mut moved: BTreeSet<PackKey> = ahead.iter().map(|(p, _)| *p).collect();
        while let Some((old, chunk)) = ahead.pop() {
            let Some(to) = self.forwards.get(&old).copied() else { continue };
            let there = s.packs.get(&to);
            if there.is_none_or(|c| !c.has(chunk)) {
                moved.remove(&old);
            }
            let goes_on = there.is_none() && self.forwards.contains_key(&to);
            if there.is_some_and(|c| c.has(chunk)) || goes_on {
                let new = self.marks.insert((to, chunk));
                if new && self.forwards.contains_key(&to) {
                    ahead.push((to, chunk));
                }
            }
        }
        moved
    }

    fn decide(&mut self, s: &Store, rules: Rules, repacks: bool) {
        let moved = if rules.hold(Rule::FollowForwards) { self.follow(s) } else { self.early.clone() };
        for pack in self.packs.clone() {
            let named = self.names_pack(&pack) && !(self.early.contains(&pack) && moved.contains(&pack));
            if !named && !self.covered(&pack, rules) {
                self.doomed.insert(pack);
            }
        }
        self.unnamed = self.early.iter().filter(|p| !self.names_pack(p)).copied().collect();
        if repacks {
            let known = |p: &&PackKey| !self.early.contains(p) && !self.forwards.contains_key(p) && !self.covered(p, rules);
            let live = |p: &PackKey| Content(self.marks.iter().filter(|(m, _)| m == p).map(|(_, c)| 1 << c).sum());
            let all = |p: &PackKey| s.packs.get(p).map_or(0, |c| c.0.count_ones());
            self.sparse = self.packs.iter().filter(known).find(|p| (1..all(p)).contains(&(live(p).0.count_ones() * 2))).copied();
            self.live = self.sparse.map_or(Content::default(), |p| live(&p));
        }
        // What decided is needed no more: runs that decided alike are alike.
        let kept = Self { doomed: std::mem::take(&mut self.doomed), unnamed: std::mem::take(&mut self.unnamed), ..Self::default() };
        *self = Self { sparse: self.sparse, live: self.live, ..kept };
    }
}
