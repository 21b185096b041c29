//! What befalls a world.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::World;
use super::plan::Blow;
use super::store::Weather;

/// How long a power cut that was announced is waited for.
const LATE_MAX: Duration = Duration::from_secs(2);

/// Strikes until the world is over.
pub(super) async fn live(world: Arc<World>) {
    let total: u64 = world.plan.blows.iter().map(|(_, w)| w).sum();
    loop {
        world.env.sleep(Duration::from_millis(50 + world.exec.below(world.plan.calm))).await;
        if world.is_over() {
            return;
        }
        let mut at = world.exec.below(total);
        let drawn = world.plan.blows.iter().find(|(_, weight)| {
            let hit = at < *weight;
            at = at.saturating_sub(*weight);
            hit
        });
        if let Some((blow, _)) = drawn {
            strike(&world, *blow).await;
        }
    }
}

async fn strike(world: &Arc<World>, blow: Blow) {
    let index = world.exec.below(world.nodes.len() as u64) as usize;
    world.exec.note(|| format!("{blow:?} n{index}"));
    match blow {
        Blow::Kill => {
            world.report.count("kill");
            world.kill(index);
            pause(world, 300).await;
            world.start(index);
        }
        Blow::PowerCut => {
            world.report.count("power cut");
            world.power_cut(index);
            pause(world, 300).await;
            world.start(index);
        }
        Blow::LatePowerCut => {
            world.nodes[index].lock().ground.disk.power_off_after(world.exec.below(40));
            let until = world.exec.now() + LATE_MAX;
            while world.exec.now() < until && !world.nodes[index].lock().ground.disk.is_off() {
                world.env.sleep(Duration::from_millis(3)).await;
            }
            world.report.count("power cut between two writes");
            world.power_cut(index);
            if world.exec.chance(500) {
                // And again while it comes up.
                world.nodes[index].lock().ground.disk.power_off_after(world.exec.below(30));
            }
            world.start(index);
            // What did not come while it came up does not come at all.
            world.nodes[index].lock().ground.disk.power_off_after(u64::MAX);
        }
        Blow::FailedFlush => {
            {
                let mut node = world.nodes[index].lock();
                node.ground.disk.fail_flush_after(world.exec.below(10));
                node.sick = true;
            }
            world.report.count("failed flush");
            pause(world, 2500).await;
            if world.exec.chance(500) {
                world.kill(index)
            } else {
                world.power_cut(index)
            }
            world.start(index);
        }
        Blow::Separate => {
            world.report.count("separation");
            let cut = world.nodes[index].lock().cut.clone();
            cut.store(true, Ordering::SeqCst);
            let (env, time) = (world.env.clone(), Duration::from_millis(world.exec.below(9000)));
            world.env.spawn(async move {
                env.sleep(time).await;
                cut.store(false, Ordering::SeqCst);
            });
        }
        Blow::Weather => {
            let odds = |of: u64| if world.exec.chance(500) { world.exec.below(of) } else { 0 };
            world.store.set_weather(Weather {
                refused: odds(100),
                lost: odds(60),
                silent: odds(15),
                misled: odds(60),
                flipped: odds(400),
                slow: odds(200),
            });
        }
        Blow::ClockJump => {
            world.report.count("clock jump");
            world.nodes[index].lock().wall.jump(world.exec.below(14_400) as i64 - 7200);
        }
        Blow::Rot => {
            if world.nodes[index].lock().ground.rot() {
                world.report.count("rotten cache");
            }
        }
    }
}

async fn pause(world: &World, most: u64) {
    world.env.sleep(Duration::from_millis(world.exec.below(most))).await;
}
