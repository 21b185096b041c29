//! What happens how often in a world.

use hiloop_env::{Random, Seeded};

use super::planted::Lie;

/// Odds of a world. Weights are relative to each other within a list.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Machines.
    pub nodes: usize,
    /// Clients that act at the same time.
    pub clients: usize,
    /// Steps of each client.
    pub steps: u64,
    /// What clients do.
    pub acts: Vec<(Act, u64)>,
    /// What befalls the world.
    pub blows: Vec<(Blow, u64)>,
    /// Milliseconds between two blows, at most.
    pub calm: u64,
    /// The guard that is void.
    pub lie: Option<Lie>,
}

/// What a client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Changes a workspace.
    Change,
    /// Reads all of a workspace.
    Read,
    /// Waits until the node's disk has everything.
    Sync,
    /// Waits until everything is published.
    Flush,
    /// Cuts a snapshot.
    Snapshot,
    /// Forks a workspace or snapshot.
    Fork,
    /// Attaches a workspace, by force or not.
    Attach,
    /// Detaches one.
    Detach,
    /// Deletes a snapshot.
    DeleteSnapshot,
    /// Deletes a workspace.
    DeleteWorkspace,
    /// Collects.
    Collect,
    /// Reads a snapshot without attaching.
    Look,
    /// Recovers tails.
    Recover,
    /// Forgets what is in memory.
    Forget,
}

/// What befalls the world next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// A daemon is killed and started again.
    Kill,
    /// Power is cut.
    PowerCut,
    /// Power goes off some disk operations later.
    LatePowerCut,
    /// A flush fails some flushes later.
    FailedFlush,
    /// A node loses the store, or has it back.
    Separate,
    /// The store's weather changes.
    Weather,
    /// A wall clock jumps.
    ClockJump,
    /// A cached byte rots.
    Rot,
}

/// How often each of some things happens, against each other.
type Odds<T> = &'static [(T, u64)];

impl Plan {
    /// The odds that a seed draws.
    pub fn of_seed(seed: u64) -> Self {
        let dice = Seeded::new(seed ^ 0x706c_616e);
        let roll = |n: u64| dice.next_u64() % n;
        // A third of all things does not happen, a third often.
        let mood = |weight: u64| match roll(6) {
            0 | 1 => 0,
            2 | 3 => weight,
            _ => weight * 4,
        };
        let mut acts = vec![(Act::Change, 40), (Act::Read, 6), (Act::Attach, 8)];
        for (act, weight) in [
            (Act::Sync, 6),
            (Act::Flush, 4),
            (Act::Snapshot, 4),
            (Act::Fork, 4),
            (Act::Attach, 4),
            (Act::Detach, 2),
            (Act::DeleteSnapshot, 2),
            (Act::DeleteWorkspace, 1),
            (Act::Collect, 3),
            (Act::Look, 3),
            (Act::Recover, 2),
            (Act::Forget, 3),
        ] {
            acts.push((act, mood(weight)));
        }
        let mut blows = vec![(Blow::Kill, 1)];
        for (blow, weight) in [
            (Blow::Kill, 2),
            (Blow::PowerCut, 2),
            (Blow::LatePowerCut, 2),
            (Blow::FailedFlush, 1),
            (Blow::Separate, 2),
            (Blow::Weather, 3),
            (Blow::ClockJump, 1),
            (Blow::Rot, 2),
        ] {
            blows.push((blow, mood(weight)));
        }
        Self {
            nodes: 2 + usize::from(roll(3) == 0),
            clients: 2 + roll(3) as usize,
            steps: 20 + roll(30),
            acts,
            blows,
            calm: 300 + roll(3000),
            lie: None,
        }
    }

    /// Odds under which the absence of a guard shows soon.
    pub fn without(lie: Lie, seed: u64) -> Self {
        let mut plan = Self { lie: Some(lie), ..Self::of_seed(seed) };
        let (acts, blows): (Odds<Act>, Odds<Blow>) = match lie {
            // Nobody waits for the disk, so only the replicator can have been cheated.
            Lie::ShippedBeforeFlush => (&[(Act::Change, 40), (Act::Attach, 6)], &[(Blow::PowerCut, 1)]),
            Lie::AnsweredBeforeWhole => (&[(Act::Change, 40), (Act::Attach, 6)], &[(Blow::Kill, 1)]),
            Lie::NoSequenceRule => (&[(Act::Change, 20), (Act::Flush, 10), (Act::Attach, 6), (Act::Collect, 30)], &[(Blow::Weather, 1)]),
            Lie::SecondReadFromMemory => (
                &[
                    (Act::Change, 20),
                    (Act::Attach, 6),
                    (Act::Snapshot, 8),
                    (Act::Flush, 6),
                    (Act::Fork, 20),
                    (Act::DeleteSnapshot, 10),
                    (Act::Collect, 30),
                ],
                &[(Blow::ClockJump, 1)],
            ),
            Lie::EpochIgnored => (&[(Act::Change, 30), (Act::Attach, 12), (Act::Flush, 8)], &[(Blow::Separate, 1)]),
            Lie::Unverified => {
                (&[(Act::Change, 30), (Act::Flush, 10), (Act::Forget, 10), (Act::Read, 20), (Act::Attach, 4)], &[(Blow::Rot, 1)])
            }
            Lie::NoDirectoryFlush => (&[(Act::Change, 40), (Act::Sync, 10), (Act::Attach, 6)], &[(Blow::PowerCut, 1)]),
            Lie::StagingInPlace => (&[(Act::Change, 40), (Act::Read, 10), (Act::Attach, 6)], &[(Blow::Weather, 1)]),
            Lie::IndexForgets => (&[(Act::Change, 60), (Act::Attach, 6)], &[(Blow::Kill, 1), (Blow::Separate, 1)]),
            Lie::ListingsEndEarly => {
                (&[(Act::Change, 30), (Act::Snapshot, 10), (Act::Attach, 6), (Act::Collect, 10)], &[(Blow::Weather, 1)])
            }
        };
        plan.acts = acts.to_vec();
        plan.blows = blows.to_vec();
        plan.steps = 40;
        if lie == Lie::SecondReadFromMemory {
            plan.clients = 5;
        }
        plan.calm = 1500;
        plan
    }
}
