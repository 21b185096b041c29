//! A deleter: retires one name (`engine/src/delete.rs`).

use super::store::{Deleted, Head, Name, Nonce, Put, Tree};
use super::{Answer, Request};
use crate::rules::{Rule, Rules};

/// Attempts where the document moves.
const ATTEMPTS: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Read,
    Mark,
    Bury,
    Reread,
    Remove,
    /// Removes a deletion object that names something else than what is there.
    Unmark,
    Done,
}

/// See [the module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Deleter {
    tag: u8,
    name: Name,
    force: bool,
    at: At,
    attempts: u8,
    deleted: Option<Deleted>,
    head: Option<Head>,
}

impl Deleter {
    /// Deletes `name`; with `force` also a workspace that somebody owns.
    pub fn new(tag: u8, name: Name, force: bool) -> Self {
        Self { tag, name, force, at: At::Read, attempts: 0, deleted: None, head: None }
    }

    /// True where it does nothing more.
    pub fn is_done(&self) -> bool {
        self.at == At::Done
    }

    fn go(&self, at: At) -> Self {
        Self { at, ..self.clone() }
    }

    fn mark(&self) -> Nonce {
        Nonce(self.tag, 100 + self.attempts)
    }

    fn behind_mark(&self, rules: Rules) -> At {
        match self.name {
            Name::Head(_) if rules.hold(Rule::Tombstones) => At::Bury,
            Name::Head(_) => At::Remove,
            Name::Snapshot(_) | Name::Base(_) => At::Reread,
        }
    }

    /// Takes the next step.
    pub fn step(&self, r: &mut Request<'_>) {
        match self.at {
            At::Read => {
                let head = match self.name {
                    Name::Head(w) => r.store().heads.get(&w).copied(),
                    _ => None,
                };
                let owned = head.is_some_and(|h| h.session.is_some());
                let gone = head.is_some_and(|h| h.tombstone);
                match r.store().nonce(self.name) {
                    Some(of) if !gone && (self.force || !owned) => {
                        let (root, base) = r.store().tree(self.name).unwrap_or_default();
                        let deleted = Some(Deleted { name: self.name, of, root, base, owned });
                        let at = if r.hold(Rule::DeletionObject) { At::Mark } else { self.behind_mark(r.rules) };
                        r.read("reads what it is to delete", Self { deleted, head, at, ..self.clone() });
                    }
                    Some(_) if !gone => r.read("refuses: somebody owns it", self.go(At::Done)),
                    _ => r.read("finds nothing to delete", self.go(At::Done)),
                }
            }
            At::Mark => {
                if let Some(deleted) = self.deleted {
                    r.put("puts the deletion object", Put::Deleted(self.mark(), deleted));
                }
            }
            At::Bury => {
                if let (Name::Head(w), Some(head)) = (self.name, self.head) {
                    r.put("swaps the tombstone in", Put::Head(w, Some(head.nonce), self.tombstone(&head)));
                }
            }
            At::Reread if r.store().nonce(self.name) == self.deleted.map(|d| d.of) => {
                r.read("finds the document unchanged", self.go(At::Remove));
            }
            At::Reread => r.read("finds another document", self.go(At::Unmark)),
            At::Remove => {
                let name = self.name;
                r.change("removes the document", self.go(At::Done), |s| match name {
                    Name::Head(w) => {
                        s.heads.remove(&w);
                    }
                    Name::Snapshot(n) => {
                        s.snapshots.remove(&n);
                    }
                    Name::Base(n) => {
                        s.bases.remove(&n);
                    }
                });
            }
            At::Unmark => {
                let again = self.attempts + 1 < ATTEMPTS;
                let next = Self { attempts: self.attempts + 1, at: if again { At::Read } else { At::Done }, ..self.clone() };
                let mark = self.mark();
                r.change("removes its deletion object", next, |s| {
                    s.deleted.remove(&mark);
                });
            }
            At::Done => {}
        }
    }

    fn tombstone(&self, head: &Head) -> Head {
        Head {
            epoch: head.epoch + 1,
            session: None,
            root: Tree::default(),
            base: None,
            cut_off: None,
            nonce: Nonce(self.tag, self.attempts),
            tombstone: true,
            ..*head
        }
    }

    /// Goes on after a write.
    pub fn answered(&self, answer: Answer, rules: Rules) -> Self {
        match (self.at, answer) {
            (At::Mark, Answer::Won) => self.go(self.behind_mark(rules)),
            (At::Bury, Answer::Lost) => self.go(At::Unmark),
            // An unsettled tombstone leaves the deletion object: the tombstone may still come.
            _ => self.go(At::Done),
        }
    }
}
