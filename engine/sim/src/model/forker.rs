//! A forker: makes one workspace from a source (`engine/src/fork.rs`).

use super::store::{Head, Intent, Name, Nonce, Put, Tree};
use super::{Answer, Request};
use crate::rules::{Rule, Rules};

/// Attempts where the source moves or the child's name is taken by a tombstone.
const ATTEMPTS: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Resolve,
    Intent,
    Reread,
    Look,
    Child,
    /// Without an intent: reads the source behind the child.
    RereadBehind,
    TakeBack,
    /// Removes the intent; then begins anew (`true`) or is done.
    Remove(bool),
    Done,
}

/// See [the module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Forker {
    tag: u8,
    source: Name,
    child: u8,
    at: At,
    attempts: u8,
    found: Option<(Tree, Option<Tree>)>,
    /// The tombstone to swap over: its nonce and epoch.
    over: Option<(Nonce, u8)>,
}

impl Forker {
    /// Forks `source` into workspace `child`.
    pub fn new(tag: u8, source: Name, child: u8) -> Self {
        Self { tag, source, child, at: At::Resolve, attempts: 0, found: None, over: None }
    }

    /// True where it does nothing more.
    pub fn is_done(&self) -> bool {
        self.at == At::Done
    }

    fn go(&self, at: At) -> Self {
        Self { at, ..self.clone() }
    }

    fn intent(&self) -> Nonce {
        Nonce(self.tag, 100 + self.attempts)
    }

    fn child(&self) -> Option<Head> {
        let (root, base) = self.found?;
        let nonce = Nonce(self.tag, self.attempts);
        Some(Head { epoch: self.over.map_or(0, |(_, e)| e + 1), ..Head::new(root, base, nonce) })
    }

    /// Takes the next step.
    pub fn step(&self, r: &mut Request<'_>) {
        match self.at {
            At::Resolve => match r.store().tree(self.source) {
                Some(found) => {
                    let at = if r.hold(Rule::ForkIntent) { At::Intent } else { At::Look };
                    r.read("reads the source", Self { found: Some(found), at, ..self.clone() });
                }
                None => r.read("finds no source", self.go(At::Done)),
            },
            At::Intent => {
                if let Some((root, base)) = self.found {
                    r.put("puts its intent", Put::Intent(self.intent(), Intent::Fork(root, base)));
                }
            }
            At::Reread if !r.hold(Rule::ForkReread) || r.store().tree(self.source) == self.found => {
                r.read("finds the source unchanged", self.go(At::Look));
            }
            At::Reread => {
                let again = self.attempts < ATTEMPTS && r.store().tree(self.source).is_some();
                r.read("finds the source moved or gone", self.go(At::Remove(again)));
            }
            At::Look => match r.store().heads.get(&self.child) {
                None => r.read("finds the child's name free", Self { over: None, at: At::Child, ..self.clone() }),
                Some(h) if h.tombstone => {
                    r.read("finds a tombstone at the child's name", Self { over: Some((h.nonce, h.epoch)), at: At::Child, ..self.clone() });
                }
                Some(_) => r.read("finds that the child exists", self.end(r.hold(Rule::ForkIntent))),
            },
            At::Child => {
                if let Some(child) = self.child() {
                    r.put("puts the child", Put::Head(self.child, self.over.map(|(n, _)| n), child));
                }
            }
            At::RereadBehind if r.store().tree(self.source) == self.found => r.read("finds the source unchanged", self.go(At::Done)),
            At::RereadBehind => r.read("finds the source moved or gone", self.go(At::TakeBack)),
            At::TakeBack => {
                if let Some(child) = self.child() {
                    let grave =
                        Head { tombstone: true, epoch: child.epoch + 1, root: Tree::default(), nonce: Nonce(self.tag, 50), ..child };
                    r.put("takes the child back", Put::Head(self.child, Some(child.nonce), grave));
                }
            }
            At::Remove(again) => {
                let next = if again { Self { attempts: self.attempts + 1, at: At::Resolve, ..self.clone() } } else { self.go(At::Done) };
                let intent = self.intent();
                r.change("removes its intent", next, |s| {
                    s.intents.remove(&intent);
                });
            }
            At::Done => {}
        }
    }

    fn end(&self, intent: bool) -> Self {
        self.go(if intent { At::Remove(false) } else { At::Done })
    }

    /// Goes on after a write.
    pub fn answered(&self, answer: Answer, rules: Rules) -> Self {
        match (self.at, answer) {
            (At::Intent, Answer::Won) => self.go(At::Reread),
            (At::Child, Answer::Won) if rules.hold(Rule::ForkIntent) => self.go(At::Remove(false)),
            (At::Child, Answer::Won) => self.go(At::RereadBehind),
            (At::Child, Answer::Lost) => self.end(rules.hold(Rule::ForkIntent)),
            // The child may still appear: what it needs stays protected until somebody drops the intent.
            (At::Child, Answer::Unsettled) if rules.hold(Rule::ForkIntentUntilSettled) => self.go(At::Done),
            (At::Child, Answer::Unsettled) => self.end(rules.hold(Rule::ForkIntent)),
            _ => self.go(At::Done),
        }
    }
}
