//! The reference model against one engine: operations, reopening, eviction, snapshots and forks in any order, shrunk where they differ.
//! Nothing goes wrong in these worlds but what the steps say.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};

use super::client::Client;
use super::plan::{Act, Blow, Plan};
use super::planted::Lie;
use super::tree::{DIRS, Op, PATHS};
use super::{World, closing};

#[derive(Clone, Debug)]
enum Step {
    /// An operation, where the tree admits it.
    Do(Op),
    /// The daemon is killed and started, and the workspace attached again.
    Reopen,
    /// It gives the workspace back and takes it again.
    Remount,
    /// Nothing is in memory any more.
    Evict,
    /// Everything is published.
    Flush,
    /// Everything is read.
    Read,
    /// A snapshot is cut and published.
    Snapshot,
    /// A snapshot is read.
    Look,
    /// A snapshot or the workspace is forked.
    Fork,
    /// The collector runs.
    Collect,
}

fn path() -> impl Strategy<Value = &'static str> {
    (0..PATHS.len()).prop_map(|i| PATHS[i])
}

fn op() -> impl Strategy<Value = Op> {
    let offset = prop_oneof![Just(0), 0..5000u64, 0..300_000u64];
    let len = prop_oneof![1..200u64, 3000..6000u64, 1..150_000u64];
    prop_oneof![
        8 => (path(), offset, len, 0..7u64).prop_map(|(path, offset, len, fill)| Op::Write { path, offset, len, fill }),
        2 => (path(), 0..300_000u64).prop_map(|(path, size)| Op::Truncate { path, size }),
        1 => (path(), 0..200_000u64, 0..300_000u64).prop_map(|(path, from, to)| Op::Punch { path, from, to }),
        1 => (path(), path(), 0..150_000u64).prop_map(|(from, to, len)| Op::Clone { from, to, len }),
        1 => path().prop_map(Op::Unlink),
        2 => (path(), path()).prop_map(|(from, to)| Op::Rename(from, to)),
        1 => (path(), path()).prop_map(|(from, to)| Op::Link(from, to)),
        2 => (0..DIRS.len()).prop_map(|i| Op::Mkdir(DIRS[i])),
        1 => (0..DIRS.len()).prop_map(|i| Op::Rmdir(DIRS[i])),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => op().prop_map(Step::Do),
        2 => Just(Step::Reopen),
        1 => Just(Step::Remount),
        2 => Just(Step::Evict),
        2 => Just(Step::Flush),
        2 => Just(Step::Read),
        2 => Just(Step::Snapshot),
        1 => Just(Step::Look),
        1 => Just(Step::Fork),
        1 => Just(Step::Collect),
    ]
}

const NAME: &str = "w";

async fn take(world: &Arc<World>, step: Step) -> hiloop_types::Result<()> {
    if let Step::Reopen = step {
        world.kill(0);
        world.start(0);
    }
    let Some(running) = world.running(0) else { return Ok(()) };
    let client = Client { world: world.clone(), node: 0, running };
    let env = client.running.env.clone();
    let work = env.spawn(Box::pin(async move {
        match step {
            Step::Do(op) => match client.mount() {
                Some(mount) => client.perform(&mount.workspace, op).await,
                None => Ok(()),
            },
            Step::Reopen => client.attach(NAME, false).await,
            Step::Remount => {
                client.detach().await?;
                client.attach(NAME, false).await
            }
            Step::Evict => {
                client.running.memory.forget();
                Ok(())
            }
            Step::Flush => client.flush().await,
            Step::Read => client.read().await,
            Step::Snapshot => {
                client.snapshot().await?;
                client.flush().await
            }
            Step::Look => client.look().await,
            Step::Fork => client.fork().await,
            Step::Collect => client.collect().await,
        }
    }));
    work.await.unwrap_or_else(|died| Err(hiloop_types::Error::internal(died.to_string())))
}

fn live(steps: Vec<Step>, lie: Option<Lie>) -> Result<(), String> {
    let plan = Plan { nodes: 1, clients: 0, steps: 0, acts: vec![(Act::Read, 1)], blows: vec![(Blow::Kill, 1)], calm: 1, lie };
    let world = World::new(7, plan, false);
    world.start(0);
    let inner = world.clone();
    let end = world.exec.run(async move {
        inner.model.lock().workspaces.insert(NAME.into(), super::model::Known { start: vec![Arc::default()], lost: false });
        for step in std::iter::once(Step::Remount).chain(steps) {
            if let Err(e) = take(&inner, step.clone()).await {
                inner.report.violation(format!("{step:?}: {e}"));
            }
            if inner.report.is_broken() {
                return;
            }
        }
        closing::settle(&inner).await;
    });
    world.stop(0);
    match (world.report.first(), end) {
        (Some(broken), _) => Err(broken),
        (None, Err(stuck)) => Err(format!("{stuck:?}")),
        (None, Ok(())) => Ok(()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_is_the_model(steps in proptest::collection::vec(step(), 1..60)) {
        prop_assert_eq!(live(steps, None), Ok(()));
    }
}

/// A comparison that never differs proves nothing.
#[test]
fn a_lying_disk_is_told_from_the_model() {
    let mut runner = TestRunner::new_with_rng(
        ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() },
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let steps = proptest::collection::vec(step(), 1..60);
    let found = runner.run(&steps, |steps| live(steps, Some(Lie::StagingInPlace)).map_err(TestCaseError::fail));
    let Err(TestError::Fail(_, steps)) = found else { panic!("staging is overwritten in place, and nothing differs: {found:?}") };
    // Two staged writes and whatever shows it.
    assert!(steps.len() <= 6, "shrunk to {steps:?}");
}
