//! A writer: opens a workspace, and ships and publishes what its script writes (`engine/src/node/attach.rs`, `workspace/replicator.rs`).

use super::store::{CHUNKS, Content, CutOff, Head, Name, Nonce, PackKey, Put, Snapshot, Tree};
use super::{Answer, Request};
use crate::rules::{Rule, Rules};

/// Attempts at an opening or at one publish while others move the head or answers get lost.
const ATTEMPTS: u8 = 2;

/// One thing that a script does: what the workspace holds after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Write {
    /// All chunks of the workspace.
    pub content: Content,
    /// True where a snapshot is cut behind it.
    pub cut: bool,
}

/// Where the writer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Read,
    Swap,
    Write,
    Ship,
    CutOff,
    Publish,
    Look,
    Snapshot,
    /// Somebody else owns the head; what was flushed and not published stays as a tail.
    Fenced,
    /// The tail becomes a workspace of its own.
    Recover,
    Done,
}

/// See [the module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Writer {
    tag: u8,
    workspace: u8,
    script: &'static [Write],
    at: At,
    /// Entries of the script that were written.
    written: u8,
    nonces: u8,
    openings: u8,
    attempts: u8,
    /// The head as this writer knows it.
    head: Option<Head>,
    /// The tree that is being published.
    built: Tree,
    /// What the session uploaded last for each chunk.
    uploaded: Tree,
    /// A cut whose snapshot object does not stand yet.
    owed: Option<Tree>,
    /// The workspace that `recover` makes of a tail, where the scenario calls it.
    recovers: Option<u8>,
    /// True where the node no longer holds the bytes of `built`.
    released: bool,
}

impl Writer {
    /// A writer that takes over whatever session there is.
    pub fn new(tag: u8, workspace: u8, script: &'static [Write]) -> Self {
        Self {
            tag,
            workspace,
            script,
            at: At::Read,
            written: 0,
            nonces: 0,
            openings: 0,
            attempts: 0,
            head: None,
            built: Tree::default(),
            uploaded: Tree::default(),
            owed: None,
            recovers: None,
            released: false,
        }
    }

    /// A writer whose tail is made a workspace `into` once it is fenced (`engine/src/node/recover.rs`).
    #[must_use]
    pub fn recovering(self, into: u8) -> Self {
        Self { recovers: Some(into), ..self }
    }

    /// True where it does nothing more.
    pub fn is_done(&self) -> bool {
        self.at == At::Done || (self.at == At::Fenced && self.recovers.is_none())
    }

    /// True where the only copy of flushed bytes was in a pack that is gone (`protocols.md` 2.6).
    pub fn lost_its_tail(&self, store: &super::Store) -> bool {
        self.released && store.unreadable(&self.built).is_some()
    }

    /// Its session: a new one for each attempt at an opening.
    fn session(&self) -> u8 {
        self.tag + 10 * self.openings
    }

    fn nonce(&self) -> Nonce {
        Nonce(self.tag, self.nonces)
    }

    fn go(&self, at: At) -> Self {
        Self { at, ..self.clone() }
    }

    fn now(&self) -> Write {
        self.script[usize::from(self.written.max(1)) - 1]
    }

    /// Takes the next step.
    pub fn step(&self, r: &mut Request<'_>) {
        let w = self.workspace;
        match self.at {
            At::Read => match r.store().heads.get(&w).filter(|h| !h.tombstone) {
                Some(head) => r.read("reads the head to open it", Self { head: Some(*head), at: At::Swap, ..self.clone() }),
                None => r.read("finds no workspace to open", self.go(At::Done)),
            },
            At::Swap => {
                if let Some(head) = self.head {
                    r.put("swaps its session into the head", Put::Head(w, Some(head.nonce), self.opening(&head, r.rules)));
                }
            }
            At::Write => match self.script.get(usize::from(self.written)) {
                Some(_) => r.read("writes and flushes", Self { written: self.written + 1, attempts: 0, at: At::Ship, ..self.clone() }),
                None if self.owed.is_some() => r.read("puts a snapshot at last", self.go(At::Snapshot)),
                None => r.read("has written all", self.go(At::Done)),
            },
            At::Ship => {
                let (tree, fresh) = self.build(r);
                if fresh == Content::default() {
                    r.read("needs no pack", Self { built: tree, at: At::CutOff, ..self.clone() });
                } else {
                    r.put("puts a pack", Put::Pack(self.pack(r.hold(Rule::UniquePackKeys)), fresh));
                }
            }
            At::CutOff => match self.head.and_then(|h| h.cut_off) {
                Some(cut_off) => r.put("puts the cut-off object", Put::CutOff(cut_off)),
                None => r.read("prepares its swap", Self { nonces: self.nonces + 1, at: At::Publish, ..self.clone() }),
            },
            At::Publish => {
                if let Some(head) = self.head {
                    r.put("swaps the new root into the head", Put::Head(w, Some(head.nonce), self.publishing(&head)));
                }
            }
            At::Look => match r.store().heads.get(&w) {
                Some(h) if h.session == Some(self.session()) && h.nonce.0 == self.tag && self.attempts < ATTEMPTS => {
                    let found =
                        Self { head: Some(*h), attempts: self.attempts + 1, nonces: self.nonces + 1, at: At::Publish, ..self.clone() };
                    r.read("finds an earlier swap of its own", found);
                }
                _ => r.read("finds that it is fenced", self.go(At::Fenced)),
            },
            At::Snapshot => {
                if let Some(root) = self.owed {
                    r.put("puts the snapshot", Put::Snapshot(0, Snapshot { root, nonce: self.nonce() }));
                }
            }
            At::Fenced if self.recovers.is_some() => match self.tail_root(r) {
                Some(root) => r.read("finds the root below its tail", Self { built: root, at: At::Recover, ..self.clone() }),
                None => r.read("finds that nothing protects the root below its tail", self.go(At::Done)),
            },
            At::Recover => {
                if let Some(into) = self.recovers {
                    r.put("puts the head of a recovered tail", Put::Head(into, None, Head::new(self.built, None, self.nonce())));
                }
            }
            At::Fenced | At::Done => {}
        }
    }

    /// The tree that a recovered tail is laid over.
    fn tail_root(&self, r: &Request<'_>) -> Option<Tree> {
        let own = self.head?;
        if !r.hold(Rule::RecoverOverCutOff) {
            return Some(own.root);
        }
        let pending = r.store().heads.get(&self.workspace).and_then(|h| h.cut_off).filter(|c| c.epoch == own.epoch);
        r.store().cutoffs.get(&(self.workspace, own.epoch)).copied().or(pending).map(|c| c.root)
    }

    /// Goes on after a write.
    pub fn answered(&self, answer: Answer, rules: Rules) -> Self {
        match (self.at, answer) {
            (At::Swap, Answer::Won) => {
                let head = self.head.map(|h| self.opening(&h, rules));
                Self { head, at: At::Write, attempts: 0, ..self.clone() }
            }
            (At::Swap, Answer::Lost) if self.openings + 1 < ATTEMPTS => {
                Self { openings: self.openings + 1, nonces: self.nonces + 1, at: At::Read, ..self.clone() }
            }
            (At::Swap, _) => self.go(At::Done),
            (At::Ship, Answer::Won) => self.shipped(rules),
            // Without unique keys: it was there, so it was put before.
            (At::Ship, Answer::Lost) if !rules.hold(Rule::UniquePackKeys) => self.shipped(rules),
            (At::Ship, Answer::Unsettled) if self.attempts < ATTEMPTS => Self { attempts: self.attempts + 1, ..self.clone() },
            (At::Ship, _) => self.go(At::Fenced),
            (At::CutOff, Answer::Unsettled) if self.attempts < ATTEMPTS => Self { attempts: self.attempts + 1, ..self.clone() },
            (At::CutOff, Answer::Unsettled) => self.go(At::Fenced),
            // One that is there was put by this opening.
            (At::CutOff, _) => Self { nonces: self.nonces + 1, at: At::Publish, ..self.clone() },
            (At::Publish, Answer::Won) => self.confirmed(rules),
            (At::Publish, Answer::Lost) => self.go(At::Look),
            (At::Publish, Answer::Unsettled) if self.attempts < ATTEMPTS => {
                Self { attempts: self.attempts + 1, nonces: self.nonces + 1, ..self.clone() }
            }
            (At::Publish, Answer::Unsettled) => self.go(At::Fenced),
            (At::Snapshot, Answer::Unsettled) if self.attempts < ATTEMPTS => Self { attempts: self.attempts + 1, ..self.clone() },
            (At::Recover, _) => self.go(At::Done),
            (At::Snapshot, _) => Self { owed: None, at: At::Write, ..self.clone() },
            _ => self.clone(),
        }
    }

    fn opening(&self, old: &Head, rules: Rules) -> Head {
        let cut_off = CutOff { workspace: self.workspace, epoch: old.epoch, root: old.root };
        Head {
            epoch: old.epoch + 1,
            session: Some(self.session()),
            nonce: self.nonce(),
            sequence: if rules.hold(Rule::OwnSequence) { 0 } else { old.sequence },
            cut_off: old.session.filter(|_| rules.hold(Rule::CutOff)).map(|_| cut_off).or(old.cut_off),
            ..*old
        }
    }

    fn publishing(&self, head: &Head) -> Head {
        Head { root: self.built, sequence: self.written, nonce: self.nonce(), cut_off: None, ..*head }
    }

    fn pack(&self, unique: bool) -> PackKey {
        let head_epoch = self.head.map_or(0, |h| h.epoch);
        let (session, attempt) = if unique { (self.session(), self.attempts) } else { (0, 0) };
        PackKey { owner: Name::Head(self.workspace), epoch: head_epoch, session, sequence: self.written, attempt }
    }

    /// The tree of what is written now, as far as it may reference what is there, and what has to be uploaded for it (`protocols.md` 4.2).
    fn build(&self, r: &Request<'_>) -> (Tree, Content) {
        let Some(head) = self.head else { return (Tree::default(), Content::default()) };
        self.build_over(&head, r.hold(Rule::DedupOnlyToLive))
    }

    fn build_over(&self, head: &Head, strict: bool) -> (Tree, Content) {
        let (mut tree, mut fresh) = (Tree::default(), Content::default());
        for chunk in self.now().content.chunks() {
            let own = self.uploaded.0[chunk].filter(|p| !strict || p.sequence > head.sequence);
            let base = head.base.and_then(|b| b.0[chunk]);
            tree.0[chunk] = head.root.0[chunk].or(own).or(base);
            if tree.0[chunk].is_none() {
                fresh.0 |= 1 << chunk;
            }
        }
        (tree, fresh)
    }

    fn shipped(&self, rules: Rules) -> Self {
        let Some(head) = self.head else { return self.clone() };
        let (mut built, fresh) = self.build_over(&head, rules.hold(Rule::DedupOnlyToLive));
        let pack = self.pack(rules.hold(Rule::UniquePackKeys));
        let mut uploaded = self.uploaded;
        for chunk in (0..CHUNKS).filter(|c| fresh.has(*c)) {
            built.0[chunk] = Some(pack);
            uploaded.0[chunk] = Some(pack);
        }
        Self { built, uploaded, released: !rules.hold(Rule::ReleaseOnConfirm), at: At::CutOff, ..self.clone() }
    }

    fn confirmed(&self, rules: Rules) -> Self {
        let head = self.head.map(|h| self.publishing(&h));
        let owed = if self.now().cut { Some(self.built) } else { self.owed };
        let at = if self.now().cut && rules.hold(Rule::SnapshotBeforePassing) { At::Snapshot } else { At::Write };
        Self { head, owed, at, released: false, attempts: 0, ..self.clone() }
    }
}
