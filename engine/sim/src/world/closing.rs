//! The end of a world: all faults stop, and everything that was promised is looked for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hiloop_engine::fsck::{FsckOptions, fsck};
use hiloop_engine::workspace::Standing;
use hiloop_types::{Error, ErrorKind, Result};

use super::World;
use super::client::Client;
use super::store::Weather;

/// Within this, all of it is published once the store is well (virtual time; late requests and deadlines included).
const PATIENCE: Duration = Duration::from_secs(600);

/// Lets things settle and checks what must be there.
pub(super) async fn settle(world: &Arc<World>) {
    world.exec.note(|| "the weather clears".into());
    world.store.set_weather(Weather::default());
    for (index, node) in world.nodes.iter().enumerate() {
        let sick = {
            let node = node.lock();
            node.cut.store(false, Ordering::SeqCst);
            node.sick
        };
        if sick {
            world.kill(index);
            world.start(index);
        }
    }
    for index in 0..world.nodes.len() {
        if world.is_broken() {
            return;
        }
        let Some(running) = world.running(index) else { continue };
        let client = Client { world: world.clone(), node: index, running };
        let env = client.running.env.clone();
        let ended = world.env.timeout(PATIENCE, env.spawn(Box::pin(async move { publish_all(&client).await }))).await;
        judge(world, &format!("publishing everything on n{index}"), flat(ended));
    }
    let last = world.nodes.len() - 1;
    let Some(running) = world.running(last) else { return };
    if world.is_broken() {
        return;
    }
    let client = Client { world: world.clone(), node: last, running };
    let env = client.running.env.clone();
    let ended = world.env.timeout(PATIENCE, env.spawn(Box::pin(async move { inspect(&client).await }))).await;
    judge(world, "the last inspection", flat(ended));
}

impl World {
    fn is_broken(&self) -> bool {
        self.report.is_broken()
    }
}

fn flat(ended: Result<Result<Result<()>, hiloop_env::Died>, hiloop_env::Elapsed>) -> Result<()> {
    match ended {
        Ok(Ok(done)) => done,
        Ok(Err(died)) => Err(Error::internal(died.to_string())),
        Err(_) => Err(Error::internal(format!("does not end within {} s", PATIENCE.as_secs()))),
    }
}

fn judge(world: &World, what: &str, done: Result<()>) {
    if let Err(e) = done {
        world.report.violation(format!("{what}, with nothing in the way, fails: {e}"));
    }
}

/// Publishes what is open, and turns tails into workspaces.
async fn publish_all(client: &Client) -> Result<()> {
    let mounts: Vec<_> = client.running.mounts.lock().values().cloned().collect();
    for mount in mounts {
        let standing = mount.workspace.status().standing;
        let lost = client.world.model.lock().openings.get(&mount.workspace.session().0).is_none_or(|h| h.lost);
        match client.flush_mount(&mount).await {
            Ok(()) => {}
            Err(e) if matches!(e.kind(), ErrorKind::Fenced | ErrorKind::Closed) || standing != Standing::Live || lost => {}
            Err(e) => return Err(e.at(mount.workspace.name())),
        }
    }
    match client.recover().await {
        // The tail of a deleted workspace stands on nothing any more.
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Collects, checks, and reads everything.
async fn inspect(client: &Client) -> Result<()> {
    let world = &client.world;
    let mounts: Vec<_> = client.running.mounts.lock().values().cloned().collect();
    for mount in &mounts {
        client.read_mount(mount, None).await?;
    }
    for _ in 0..2 {
        client.collect().await?;
    }
    let report = fsck(&client.running.context("inspector", None), &FsckOptions { deep: true, source: None }).await?;
    if !report.is_clean() {
        world.report.violation(format!("fsck finds {:?} {:?} {:?}", report.missing, report.corrupt, report.structure));
        return Ok(());
    }
    let (workspaces, snapshots) = {
        let model = world.model.lock();
        let mounted: BTreeSet<String> = client.running.mounts.lock().keys().cloned().collect();
        let workspaces: Vec<String> =
            model.workspaces.iter().filter(|(n, k)| !k.lost && !mounted.contains(*n)).map(|(n, _)| n.clone()).collect();
        let snapshots: Vec<(String, bool)> =
            model.snapshots.iter().filter(|(_, s)| !s.deleted).map(|(n, s)| (n.clone(), s.replicated)).collect();
        (workspaces, snapshots)
    };
    client.running.memory.forget();
    for w in workspaces {
        match client.attach(&w, true).await {
            // Draining here since it was detached, or attached by a client that never mounted it.
            Err(e) if e.kind() == ErrorKind::Conflict => {}
            other => other?,
        }
    }
    for (s, replicated) in snapshots {
        match client.look_at(&s).await {
            Err(e) if e.kind() == ErrorKind::NotFound && !replicated => {}
            Err(e) if e.kind() == ErrorKind::NotFound => world.report.violation(format!("snapshot {s} was replicated and is gone")),
            other => other?,
        }
    }
    Ok(())
}
