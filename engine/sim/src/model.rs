//! The store's protocols: what writers, forkers, deleters, publishers and collectors do to the objects of one store.
//!
//! [`World`] is one [`Store`], some [`Actor`]s, and the faults that may still happen. Each actor is a deterministic program
//! whose steps are single requests; the explorer interleaves them in all ways, which also covers owners that pause at any point.
//!
//! Every conditional write goes through [`Request::put`], which adds the faults of a network: the answer may be lost after the write took
//! effect, or before, and then the write may still take effect at any later time. Who lost an answer reads back, as the engine's
//! `create_settled` and `swap_settled` do, and, where nothing is there, writes once more or gives up.

pub mod collector;
pub mod deleter;
pub mod forker;
pub mod publisher;
pub mod store;
pub mod writer;

use std::collections::BTreeSet;

use crate::explore::{Machine, Step, Steps, Violation};
use crate::rules::{Rule, Rules};
use collector::Collector;
use deleter::Deleter;
use forker::Forker;
use publisher::Publisher;
use store::{Put, Store};
use writer::Writer;

/// Somebody who uses the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Actor {
    /// Opens a workspace and publishes.
    Writer(Writer),
    /// Forks.
    Forker(Forker),
    /// Deletes a name.
    Deleter(Deleter),
    /// Publishes a base.
    Publisher(Publisher),
    /// Collects.
    Collector(Collector),
    /// Died; what it left stays.
    Dead,
}

/// How a conditional write ended, as far as its sender can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It took effect.
    Won,
    /// Somebody else was first.
    Lost,
    /// The sender does not know, and gave up asking: the write may still take effect.
    Unsettled,
}

/// An actor and the write whose answer it lost.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    actor: Actor,
    unsure: Option<Put>,
}

/// Faults that may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Answers that get lost.
    pub lost_answers: u8,
    /// Actors that die between two requests.
    pub deaths: u8,
}

/// A state: store, actors, writes under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// All objects.
    pub store: Store,
    slots: Vec<Slot>,
    late: BTreeSet<Put>,
    faults: Faults,
}

impl World {
    /// A world before anything happened.
    pub fn new(store: Store, actors: Vec<Actor>, faults: Faults) -> Self {
        Self { store, slots: actors.into_iter().map(|actor| Slot { actor, unsure: None }).collect(), late: BTreeSet::new(), faults }
    }
}

/// What an actor sees and uses while it takes its next step.
pub struct Request<'a> {
    world: &'a World,
    rules: Rules,
    slot: usize,
    who: &'static str,
    out: &'a mut Steps<World>,
}

impl Request<'_> {
    /// The store, as it is now.
    pub fn store(&self) -> &Store {
        &self.world.store
    }
    /// True where `rule` holds.
    pub fn hold(&self, rule: Rule) -> bool {
        self.rules.hold(rule)
    }

    /// Reads, or does something that the store does not see: the actor goes on as `next`.
    pub fn read(&mut self, what: &'static str, next: impl Into<Actor>) {
        self.change(what, next, |_| ());
    }

    /// Does an unconditional request.
    pub fn change(&mut self, what: &'static str, next: impl Into<Actor>, effect: impl FnOnce(&mut Store)) {
        let mut world = self.world.clone();
        effect(&mut world.store);
        world.slots[self.slot].actor = next.into();
        self.out.push((Step { who: self.who, what }, world));
    }

    /// Sends a conditional write, with all that a network can make of it.
    pub fn put(&mut self, what: &'static str, put: Put) {
        let mut world = self.world.clone();
        let answer = if put.apply(&mut world.store) { Answer::Won } else { Answer::Lost };
        world.slots[self.slot].actor = self.world.slots[self.slot].actor.answered(answer, self.rules);
        self.out.push((Step { who: self.who, what }, world));

        if self.world.faults.lost_answers > 0 {
            let mut world = self.world.clone();
            world.faults.lost_answers -= 1;
            world.slots[self.slot].unsure = Some(put.clone());
            let mut under_way = world.clone();
            under_way.late.insert(put.clone());
            put.apply(&mut world.store);
            let who = self.who;
            self.out.push((Step { who: "network", what: "applies the next write and loses its answer" }, world));
            self.out.push((Step { who, what: "sends a write that stays under way" }, under_way));
        }
    }

    /// Settles a write whose answer was lost: reads back, and where nothing changed, sends once more or gives up.
    fn settle(&mut self, put: &Put) {
        let mut go = |what, answer, effect: bool| {
            let mut world = self.world.clone();
            if effect {
                put.apply(&mut world.store);
            }
            world.slots[self.slot] = Slot { actor: self.world.slots[self.slot].actor.answered(answer, self.rules), unsure: None };
            self.out.push((Step { who: self.who, what }, world));
        };
        if put.stands(&self.world.store) {
            go("reads back: its write stands", Answer::Won, false);
        } else if put.may_apply(&self.world.store) {
            go("reads back: nothing yet; writes again", Answer::Won, true);
            go("gives up on its write", Answer::Unsettled, false);
        } else {
            go("reads back: somebody else was first", Answer::Lost, false);
        }
    }
}

macro_rules! actors {
    ($($name:ident),*) => {
        $(impl From<$name> for Actor {
            fn from(a: $name) -> Self {
                Self::$name(a)
            }
        })*
    };
}

actors!(Writer, Forker, Deleter, Publisher, Collector);

impl Actor {
    /// What the actor can do next.
    fn step(&self, r: &mut Request<'_>) {
        match self {
            Self::Writer(a) => a.step(r),
            Self::Forker(a) => a.step(r),
            Self::Deleter(a) => a.step(r),
            Self::Publisher(a) => a.step(r),
            Self::Collector(a) => a.step(r),
            Self::Dead => {}
        }
    }

    /// How the actor goes on once the fate of its write is known, or will not be.
    fn answered(&self, answer: Answer, rules: Rules) -> Self {
        match self {
            Self::Writer(a) => a.answered(answer, rules).into(),
            Self::Forker(a) => a.answered(answer, rules).into(),
            Self::Deleter(a) => a.answered(answer, rules).into(),
            Self::Publisher(a) => a.answered(answer, rules).into(),
            Self::Collector(a) => a.answered(answer, rules).into(),
            Self::Dead => Self::Dead,
        }
    }

    fn mortal(&self) -> bool {
        match self {
            Self::Forker(a) => !a.is_done(),
            Self::Publisher(a) => !a.is_done(),
            // Death is a pause that never ends, which is explored anyway; what is left behind for good matters for intents.
            _ => false,
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Self::Writer(a) => a.is_done(),
            Self::Forker(a) => a.is_done(),
            Self::Deleter(a) => a.is_done(),
            Self::Publisher(a) => a.is_done(),
            Self::Collector(a) => a.is_done(),
            Self::Dead => true,
        }
    }
}

/// The machine over [`World`]s.
pub struct Model {
    start: World,
    names: Vec<&'static str>,
    rules: Rules,
}

impl Model {
    /// A model of these actors, each with its name for traces.
    pub fn new(store: Store, actors: Vec<(&'static str, Actor)>, faults: Faults, rules: Rules) -> Self {
        let (names, actors) = actors.into_iter().unzip();
        Self { start: World::new(store, actors, faults), names, rules }
    }
}

impl Machine for Model {
    type State = World;

    fn start(&self) -> World {
        self.start.clone()
    }

    fn steps(&self, world: &World, out: &mut Steps<World>) {
        for (i, slot) in world.slots.iter().enumerate() {
            let mut request = Request { world, rules: self.rules, slot: i, who: self.names[i], out };
            match &slot.unsure {
                None => slot.actor.step(&mut request),
                Some(put) => request.settle(put),
            }
            if world.faults.deaths > 0 && slot.actor.mortal() {
                let mut world = world.clone();
                world.faults.deaths -= 1;
                world.slots[i] = Slot { actor: Actor::Dead, unsure: None };
                out.push((Step { who: self.names[i], what: "dies" }, world));
            }
        }
        for put in &world.late {
            let mut next = world.clone();
            next.late.remove(put);
            put.apply(&mut next.store);
            out.push((Step { who: "network", what: "delivers a write that was under way" }, next));
        }
    }

    fn check(&self, world: &World) -> Result<(), Violation> {
        let store = &world.store;
        if let Some(what) = store.broken {
            return Err(Violation(what.into()));
        }
        for (name, tree) in store.live_trees() {
            if let Some((chunk, pack)) = store.unreadable(&tree) {
                return Err(Violation(format!("{name} references chunk {chunk} in {pack}, which is gone or has other content")));
            }
        }
        for (i, slot) in world.slots.iter().enumerate() {
            if matches!(&slot.actor, Actor::Writer(w) if w.lost_its_tail(store)) {
                return Err(Violation(format!(
                    "{} released local bytes that no confirmed head contains, and their pack is gone",
                    self.names[i]
                )));
            }
        }
        Ok(())
    }

    fn check_end(&self, world: &World) -> Result<(), Violation> {
        match world.slots.iter().position(|s| !s.actor.is_done()) {
            Some(i) => Err(Violation(format!("{} never ends", self.names[i]))),
            None => Ok(()),
        }
    }
}
