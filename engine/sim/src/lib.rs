//! Small exhaustive models of the protocols (`protocols.md` 8), and the real engine in seeded worlds ([`world`]).
//!
//! The engine's protocols promise things about *every* interleaving of writers, forkers, collectors, publishers and faults. A test
//! runs a few of them; this crate runs all of them, in worlds small enough that "all" is some ten thousand states.
//!
//! # How
//!
//! [`explore`] walks every reachable state of a [`Machine`](explore::Machine) breadth first, so the first violation it meets has a
//! shortest trace. There are three machines, each an abstraction of what the engine does, one step for one request to the store or
//! to the disk:
//!
//! | machine | sections | has |
//! |---|---|---|
//! | [`model`] | 3.1, 3.4, 3.6, 4, 5, 7 | heads, packs, snapshots, bases, intents, deletions, forwards; writers, forkers, deleters, publishers, collectors |
//! | [`disk`] | 2.4 - 2.7 | journal and staging pages with a page cache, group commits, failing flushes, power cuts, the index |
//! | [`opening`] | 2.8, 3.2 - 3.4 | openings, releases, heartbeats, journalled nonces, power cuts, a copied directory |
//!
//! [`scenario::ALL`] has the worlds: at least one for each row of `protocols.md` 9. [`Rules`](rules::Rules) switches single rules off;
//! every [`Rule`](rules::Rule) names the scenario that must then fail, and the tests see to it that it does and that no scenario
//! fails with all rules.
//!
//! Some rules are marked *proposed*: `protocols.md` does not state them, and the models show that its promises need them. They hold by
//! default, so the scenarios say nothing about an engine that lacks them; `hiloop-sim rules` lists them, and `hiloop-sim model --drop`
//! prints what happens.
//!
//! # Changing a protocol
//!
//! Change the model first. A new rule is a variant of [`Rule`](rules::Rule) that an actor asks about; it has earned its place once its
//! scenario fails without it. Where an actor of the model and the engine's code differ in the order of requests, one of them is wrong.
//!
//! # What the models leave out
//!
//! - Sizes: two or three chunks, two workspaces, one or two runs of a collector, one or two faults. A violation that needs more is not found.
//! - Manifest nodes: a tree is a flat map from chunks to packs. Nodes are collected like chunks, so nothing is lost by it.
//! - Listing reads all objects of one kind in one step; the store's listing is strongly consistent, but the engine reads the
//!   listed documents one by one.
//! - Time: the age rules (`deleted/` objects after a day, cut-offs after 30 days, grace) never come into effect.
//! - Leases: their rule is the forks' (7.5). Quotas, inode numbers, backlog, caches.
//! - Deaths of writers, deleters and collectors are pauses that never end. What a death leaves behind *for good* is modelled for forkers
//!   and publishers only.
//! - The real engine's code: this checks the protocol. [`world`] checks the code.

pub mod disk;
pub mod executor;
pub mod explore;
pub mod model;
pub mod opening;
pub mod rules;
pub mod scenario;
pub mod world;
