//! The worlds that are explored.

use crate::disk::{self, Disk};
use crate::explore::{Outcome, explore};
use crate::model::collector::Collector;
use crate::model::deleter::Deleter;
use crate::model::forker::Forker;
use crate::model::publisher::Publisher;
use crate::model::store::{Base, Content, FIRST, Head, Name, PackKey, Store, Tree};
use crate::model::writer::{Write, Writer};
use crate::model::{Actor, Faults, Model};
use crate::opening::{self, Opening};
use crate::rules::Rules;

/// A world, and the row of `protocols.md` 9 that it stands for.
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// The interleaving that broke a simpler rule; in the words of `protocols.md` 9 where it has a row there.
    pub about: &'static str,
    run: fn(Rules) -> Outcome,
}

impl Scenario {
    /// Explores it.
    pub fn run(&self, rules: Rules) -> Outcome {
        (self.run)(rules)
    }
}

/// All scenarios.
pub const ALL: &[Scenario] = &[
    Scenario { name: "repack", about: "two collectors while one repacks", run: repack },
    Scenario { name: "repack-unsettled", about: "a forward appears after its writer gave up on it", run: repack_unsettled },
    Scenario { name: "dedup", about: "content deleted, collected, then written again and deduplicated to the dead pack", run: dedup },
    Scenario { name: "pack-keys", about: "a late PUT, a re-created workspace or base reuses a pack key", run: pack_keys },
    Scenario { name: "delete-open", about: "delete races an opening", run: delete_open },
    Scenario {
        name: "failed-flush",
        about: "failed flush, restart, pages clean in the page cache",
        run: |r| explore(&Disk::new(disk::FAILED_FLUSH, r)),
    },
    Scenario {
        name: "commit",
        about: "a record of the same commit names staging that was not flushed",
        run: |r| explore(&Disk::new(disk::COMMIT, r)),
    },
    Scenario {
        name: "index",
        about: "the index outruns the journal; numbers are used twice",
        run: |r| explore(&Disk::new(disk::INDEX, r)),
    },
    Scenario { name: "fenced-tail", about: "a fenced tail was \"shipped\", then collected", run: fenced_tail },
    Scenario { name: "recover", about: "a fenced owner that does not know its last publish recovers its tail", run: recover },
    Scenario { name: "late-snapshot", about: "a paused owner puts a snapshot after it was fenced", run: late_snapshot },
    Scenario {
        name: "deleted-snapshot",
        about: "a paused owner puts a snapshot after its workspace was deleted by force",
        run: deleted_snapshot,
    },
    Scenario {
        name: "takeover-publish",
        about: "an opening's first packs against the sequence of the opening before",
        run: takeover_publish,
    },
    Scenario { name: "base-deleted", about: "a base is deleted while it is a dedup source", run: base_deleted },
    Scenario { name: "base-reuse", about: "a base is deleted while another is published from its chunks", run: base_reuse },
    Scenario { name: "fork-delete", about: "a fork dies between put and re-read", run: fork_delete },
    Scenario { name: "fork-alone", about: "a fork of the only name in the store, which is deleted", run: fork_alone },
    Scenario { name: "fork-chain", about: "chains of fork and delete run around the listing", run: fork_chain },
    Scenario { name: "fork-moving", about: "a fork of a root that its workspace leaves before the heads are listed", run: fork_moving },
    Scenario { name: "fork-unsettled", about: "a child appears after its forker gave up on it", run: fork_unsettled },
    Scenario {
        name: "power-cuts",
        about: "two power cuts around the swap; a cloned cache directory",
        run: |r| explore(&Opening::new(opening::POWER_CUTS, r)),
    },
    Scenario {
        name: "lost-window",
        about: "unmount timed out, heartbeat stale: a hidden lost window",
        run: |r| explore(&Opening::new(opening::LOST_WINDOW, r)),
    },
    Scenario {
        name: "dead-owner",
        about: "a node beats but no longer owns the workspace",
        run: |r| explore(&Opening::new(opening::DEAD_OWNER, r)),
    },
    Scenario { name: "writers", about: "two writers, a snapshot, two lost answers", run: writers },
    Scenario { name: "recreation", about: "deletion and re-creation under a writer, a forker and a collector", run: recreation },
];

/// The scenario of that name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|s| s.name == name)
}

const A: Content = Content(1);
const B: Content = Content(2);
const C: Content = Content(4);
const NOTHING: Content = Content(0);

const fn write(content: Content) -> Write {
    Write { content, cut: false }
}

const fn cut(content: Content) -> Write {
    Write { content, cut: true }
}

/// A pack of an opening that was over before the start.
fn old_pack(owner: Name) -> PackKey {
    PackKey { owner, epoch: 0, session: 99, sequence: 1, attempt: 0 }
}

/// A store with workspace 0, which nobody has open, holding `content` of a pack that holds `packed`.
fn one_workspace(content: Content, packed: Content) -> Store {
    let pack = old_pack(Name::Head(0));
    let mut store = Store::default();
    store.packs.insert(pack, packed);
    store.heads.insert(0, Head::new(Tree::of(content, pack), None, FIRST));
    store
}

/// Adds an empty workspace that nothing happens to, so that no pass of a collector is without names.
fn with_bystander(mut store: Store) -> Store {
    store.heads.insert(7, Head::new(Tree::default(), None, FIRST));
    store
}

/// A store with base 0 that holds chunk A.
fn one_base() -> Store {
    let pack = old_pack(Name::Base(0));
    let mut store = Store::default();
    store.packs.insert(pack, A);
    store.bases.insert(0, Base { root: Some(Tree::of(A, pack)), reuses: None, session: 99, nonce: FIRST });
    store
}

const CALM: Faults = Faults { lost_answers: 0, deaths: 0 };
const ONE_LOST: Faults = Faults { lost_answers: 1, deaths: 0 };
const ONE_DEATH: Faults = Faults { lost_answers: 0, deaths: 1 };

fn go(store: Store, actors: Vec<(&'static str, Actor)>, faults: Faults, rules: Rules) -> Outcome {
    explore(&Model::new(store, actors, faults, rules))
}

fn repack(rules: Rules) -> Outcome {
    let store = one_workspace(A, Content(7));
    let actors = vec![("collector 1", Collector::new(1, 2, true).into()), ("collector 2", Collector::new(2, 1, true).into())];
    go(store, actors, CALM, rules)
}

fn repack_unsettled(rules: Rules) -> Outcome {
    let store = one_workspace(A, Content(7));
    let actors = vec![("collector 1", Collector::new(1, 2, true).into()), ("collector 2", Collector::new(2, 1, false).into())];
    go(store, actors, ONE_LOST, rules)
}

fn dedup(rules: Rules) -> Outcome {
    const SCRIPT: &[Write] = &[write(A), write(NOTHING), write(A)];
    let store = one_workspace(NOTHING, NOTHING);
    let actors = vec![("writer", Writer::new(1, 0, SCRIPT).into()), ("collector", Collector::new(2, 1, false).into())];
    go(store, actors, ONE_LOST, rules)
}

fn pack_keys(rules: Rules) -> Outcome {
    let actors = vec![
        ("publisher 1", Publisher::new(1, 0, A, None).into()),
        ("deleter", Deleter::new(2, Name::Base(0), false).into()),
        ("publisher 2", Publisher::new(3, 0, A, None).into()),
        ("collector", Collector::new(4, 1, false).into()),
    ];
    go(with_bystander(Store::default()), actors, CALM, rules)
}

fn delete_open(rules: Rules) -> Outcome {
    const SCRIPT: &[Write] = &[write(B)];
    let mut store = one_base();
    store.heads.insert(0, Head::new(Tree::default(), None, FIRST));
    let actors = vec![
        ("writer 1", Writer::new(1, 0, SCRIPT).into()),
        ("deleter", Deleter::new(2, Name::Head(0), false).into()),
        ("forker", Forker::new(3, Name::Base(0), 0).into()),
        ("writer 2", Writer::new(4, 0, &[]).into()),
    ];
    go(store, actors, CALM, rules)
}

fn fenced_tail(rules: Rules) -> Outcome {
    const SCRIPT: &[Write] = &[write(A)];
    let actors = vec![
        ("writer 1", Writer::new(1, 0, SCRIPT).into()),
        ("writer 2", Writer::new(2, 0, &[]).into()),
        ("collector", Collector::new(3, 1, false).into()),
    ];
    go(one_workspace(NOTHING, NOTHING), actors, CALM, rules)
}

fn late_snapshot(rules: Rules) -> Outcome {
    const FIRST_OWNER: &[Write] = &[cut(A), write(B)];
    const SECOND_OWNER: &[Write] = &[write(C)];
    let actors = vec![
        ("writer 1", Writer::new(1, 0, FIRST_OWNER).into()),
        ("writer 2", Writer::new(2, 0, SECOND_OWNER).into()),
        ("collector", Collector::new(3, 1, false).into()),
    ];
    go(one_workspace(NOTHING, NOTHING), actors, CALM, rules)
}

fn deleted_snapshot(rules: Rules) -> Outcome {
    const SCRIPT: &[Write] = &[cut(A)];
    let actors = vec![
        ("writer", Writer::new(1, 0, SCRIPT).into()),
        ("deleter", Deleter::new(2, Name::Head(0), true).into()),
        ("collector", Collector::new(3, 1, false).into()),
    ];
    go(with_bystander(one_workspace(NOTHING, NOTHING)), actors, CALM, rules)
}

fn takeover_publish(rules: Rules) -> Outcome {
    const SCRIPT: &[Write] = &[write(B)];
    let mut store = one_workspace(A, A);
    if let Some(head) = store.heads.get_mut(&0) {
        *head = Head { session: Some(99), sequence: 5, ..*head };
    }
    let actors = vec![("writer", Writer::new(1, 0, SCRIPT).into()), ("collector", Collector::new(2, 1, false).into())];
    go(store, actors, ONE_LOST, rules)
}

fn base_deleted(rules: Rules) -> Outcome {
    const SCRIPT: &[Write] = &[write(A)];
    let mut store = one_base();
    let base = store.tree(Name::Base(0)).map(|(root, _)| root);
    store.heads.insert(0, Head::new(Tree::default(), base, FIRST));
    let actors = vec![
        ("writer", Writer::new(1, 0, SCRIPT).into()),
        ("deleter", Deleter::new(2, Name::Base(0), false).into()),
        ("forker", Forker::new(3, Name::Head(0), 1).into()),
        ("collector", Collector::new(4, 1, false).into()),
    ];
    go(store, actors, CALM, rules)
}

fn base_reuse(rules: Rules) -> Outcome {
    let actors = vec![
        ("publisher", Publisher::new(1, 1, Content(3), Some(0)).into()),
        ("deleter", Deleter::new(2, Name::Base(0), false).into()),
        ("collector", Collector::new(3, 1, false).into()),
    ];
    go(with_bystander(one_base()), actors, ONE_LOST, rules)
}

fn fork_delete(rules: Rules) -> Outcome {
    let actors = vec![
        ("forker", Forker::new(1, Name::Head(0), 1).into()),
        ("deleter", Deleter::new(2, Name::Head(0), false).into()),
        ("collector", Collector::new(3, 1, false).into()),
    ];
    go(with_bystander(one_workspace(A, A)), actors, ONE_DEATH, rules)
}

fn fork_alone(rules: Rules) -> Outcome {
    let actors = vec![
        ("forker", Forker::new(1, Name::Head(0), 1).into()),
        ("deleter", Deleter::new(2, Name::Head(0), false).into()),
        ("collector", Collector::new(3, 1, false).into()),
    ];
    go(one_workspace(A, A), actors, CALM, rules)
}

fn fork_chain(rules: Rules) -> Outcome {
    let actors = vec![
        ("forker 1", Forker::new(1, Name::Head(0), 1).into()),
        ("forker 2", Forker::new(2, Name::Head(1), 2).into()),
        ("deleter 1", Deleter::new(3, Name::Head(0), false).into()),
        ("deleter 2", Deleter::new(4, Name::Head(1), false).into()),
        ("collector", Collector::new(5, 1, false).into()),
    ];
    go(with_bystander(one_workspace(A, A)), actors, CALM, rules)
}

fn fork_moving(rules: Rules) -> Outcome {
    const SCRIPT: &[Write] = &[write(A), write(NOTHING)];
    let actors = vec![
        ("writer", Writer::new(1, 0, SCRIPT).into()),
        ("forker", Forker::new(2, Name::Head(0), 1).into()),
        ("collector", Collector::new(3, 1, false).into()),
    ];
    go(one_workspace(NOTHING, NOTHING), actors, CALM, rules)
}

fn fork_unsettled(rules: Rules) -> Outcome {
    let actors = vec![
        ("forker", Forker::new(1, Name::Head(0), 1).into()),
        ("deleter", Deleter::new(2, Name::Head(0), false).into()),
        ("collector", Collector::new(3, 1, false).into()),
    ];
    go(with_bystander(one_workspace(A, A)), actors, ONE_LOST, rules)
}

fn writers(rules: Rules) -> Outcome {
    const FIRST_OWNER: &[Write] = &[write(A), cut(B)];
    const SECOND_OWNER: &[Write] = &[write(C)];
    let actors = vec![("writer 1", Writer::new(1, 0, FIRST_OWNER).into()), ("writer 2", Writer::new(2, 0, SECOND_OWNER).into())];
    go(one_workspace(NOTHING, NOTHING), actors, Faults { lost_answers: 2, deaths: 0 }, rules)
}

fn recover(rules: Rules) -> Outcome {
    const SCRIPT: &[Write] = &[write(B)];
    let actors = vec![
        ("writer 1", Writer::new(1, 0, SCRIPT).recovering(1).into()),
        ("writer 2", Writer::new(2, 0, &[]).into()),
        ("collector", Collector::new(3, 1, false).into()),
    ];
    go(one_workspace(A, A), actors, ONE_LOST, rules)
}

fn recreation(rules: Rules) -> Outcome {
    const SCRIPT: &[Write] = &[write(B)];
    let mut store = one_workspace(A, A);
    if let Some(head) = store.heads.get(&0).copied() {
        store.heads.insert(1, head);
    }
    let actors = vec![
        ("deleter", Deleter::new(1, Name::Head(0), false).into()),
        ("forker", Forker::new(2, Name::Head(1), 0).into()),
        ("writer", Writer::new(3, 0, SCRIPT).into()),
        ("collector", Collector::new(4, 1, false).into()),
    ];
    go(store, actors, CALM, rules)
}
