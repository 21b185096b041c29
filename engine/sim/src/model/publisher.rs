//! A publisher of a base (`engine/src/base.rs`).

use super::store::{Base, Content, Name, Nonce, PackKey, Put, Tree};
use super::{Answer, Request};
use crate::rules::{Rule, Rules};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Read,
    Intent,
    Reread,
    /// Swaps the intent for one that reuses nothing.
    Forget,
    Pack,
    Base,
    Done,
}

/// See [the module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Publisher {
    tag: u8,
    name: u8,
    content: Content,
    /// The base whose chunks it wants to reference.
    reuse: Option<u8>,
    at: At,
    nonces: u8,
    /// Nonce of what its next swap replaces.
    over: Option<Nonce>,
    reuses: Option<Tree>,
    built: Tree,
}

impl Publisher {
    /// Publishes `content` as base `name`, taking over an intent that is there.
    pub fn new(tag: u8, name: u8, content: Content, reuse: Option<u8>) -> Self {
        Self { tag, name, content, reuse, at: At::Read, nonces: 0, over: None, reuses: None, built: Tree::default() }
    }

    /// True where it does nothing more.
    pub fn is_done(&self) -> bool {
        self.at == At::Done
    }

    fn go(&self, at: At) -> Self {
        Self { at, ..self.clone() }
    }

    fn doc(&self, root: Option<Tree>) -> Base {
        Base { root, reuses: self.reuses, session: self.tag, nonce: Nonce(self.tag, self.nonces) }
    }

    fn pack(&self, unique: bool) -> PackKey {
        let session = if unique { self.tag } else { 0 };
        PackKey { owner: Name::Base(self.name), epoch: 0, session, sequence: 0, attempt: 0 }
    }

    fn fresh(&self) -> Content {
        let reused = self.reuses.unwrap_or_default();
        Content(self.content.chunks().filter(|c| reused.0[*c].is_none()).map(|c| 1 << c).sum())
    }

    fn build(&self, unique: bool) -> Tree {
        let mut tree = Tree::of(self.fresh(), self.pack(unique));
        if let Some(reused) = self.reuses {
            self.content.chunks().for_each(|c| tree.0[c] = tree.0[c].or(reused.0[c]));
        }
        tree
    }

    /// Takes the next step.
    pub fn step(&self, r: &mut Request<'_>) {
        let reused = || self.reuse.and_then(|b| r.store().tree(Name::Base(b))).map(|(root, _)| root);
        match self.at {
            At::Read => match r.store().bases.get(&self.name) {
                Some(b) if b.root.is_some() => r.read("finds the base published", self.go(At::Done)),
                there => {
                    let next = Self { over: there.map(|b| b.nonce), reuses: reused(), at: At::Intent, ..self.clone() };
                    r.read("looks for the base and for bases to reuse", next);
                }
            },
            At::Intent | At::Forget => r.put("puts its intent", Put::Base(self.name, self.over, self.doc(None))),
            At::Reread if !r.hold(Rule::ReuseReread) || self.reuses.is_none() || self.reuses == reused() => {
                r.read("finds the reused base unchanged", self.go(At::Pack));
            }
            At::Reread => {
                r.read("finds the reused base gone", Self { reuses: None, nonces: self.nonces + 1, at: At::Forget, ..self.clone() })
            }
            At::Pack if self.fresh() == Content::default() => r.read("needs no pack", self.packed(r.rules)),
            At::Pack => r.put("puts a pack", Put::Pack(self.pack(r.hold(Rule::UniquePackKeys)), self.fresh())),
            At::Base if r.hold(Rule::IntentBecomesBase) => {
                r.put("swaps its intent for the base", Put::Base(self.name, self.over, self.doc(Some(self.built))));
            }
            At::Base => {
                let (name, doc) = (self.name, self.doc(Some(self.built)));
                r.change("puts the base over whatever is there", self.go(At::Done), |s| {
                    s.bases.insert(name, doc);
                });
            }
            At::Done => {}
        }
    }

    fn packed(&self, rules: Rules) -> Self {
        Self { built: self.build(rules.hold(Rule::UniquePackKeys)), nonces: self.nonces + 1, at: At::Base, ..self.clone() }
    }

    /// Goes on after a write.
    pub fn answered(&self, answer: Answer, rules: Rules) -> Self {
        let stands = Self { over: Some(Nonce(self.tag, self.nonces)), ..self.clone() };
        match (self.at, answer) {
            (At::Intent, Answer::Won) => stands.go(At::Reread),
            (At::Forget, Answer::Won) => stands.go(At::Pack),
            (At::Pack, Answer::Won) => self.packed(rules),
            // Without unique keys: it was there, so it was put before.
            (At::Pack, Answer::Lost) if !rules.hold(Rule::UniquePackKeys) => self.packed(rules),
            // After any other failure the intent stays, for the next publisher or a deletion.
            _ => self.go(At::Done),
        }
    }
}
