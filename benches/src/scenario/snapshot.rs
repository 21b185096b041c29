//! Snapshots of a large tree under a running writer, beside a control run of the same writer alone.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use hiloop_env::Env;
use hiloop_types::{Error, Result};
use serde_json::json;

use super::{Context, percentile, publish};
use crate::deadline::Deadline;
use crate::figure::{Figure, Verdict};
use crate::mounts::Mounted;
use crate::run::{Tool, timed};
use crate::tree::{make_directory, tiny, tiny_path};

/// Files of the tree, in directories of a thousand.
const DIRECTORIES: u32 = 100;
/// Snapshots with a hundred changed files, and as many control windows.
const TURNS: u32 = 500;
const CHANGED: u32 = 100;
const CHANGED_BYTES: usize = 1024;

fn at<T>(path: &Path, result: std::io::Result<T>) -> Result<T> {
    result.map_err(|e| Error::io(path.display(), &e))
}

fn change(at_root: &Path, files: u32, turn: u32) -> Result<()> {
    (0..files).try_for_each(|n| {
        let path = at_root.join(tiny_path((n * 7 + turn) % DIRECTORIES, n % 1000));
        let mut content = vec![turn as u8; CHANGED_BYTES];
        content[..4].copy_from_slice(&(turn * 1000 + n).to_le_bytes());
        at(&path, fs::write(&path, content))
    })
}

/// Writes 4 KiB again and again until `done`; each wait with the time at which it began.
fn writer(path: &Path, done: &AtomicBool, env: &Env) -> Result<Vec<(f64, f64)>> {
    let file = at(path, File::create(path))?;
    let mut waits = Vec::new();
    let mut n = 0u64;
    while !done.load(Relaxed) {
        let began = env.monotonic().as_secs_f64();
        let (took, ()) = timed(env, || at(path, file.write_all_at(&[n as u8; 4096], n % 1024 * 4096)))?;
        waits.push((began, took));
        n += 1;
    }
    Ok(waits)
}

pub(super) fn run(context: &mut Context<'_>) -> Result<Vec<Figure>> {
    let mut store = context.plain()?;
    let tool = context.tool(&store);
    let tree = context.dir.join("tree");
    context.phase("snapshot: publishing 100,000 files")?;
    tiny(&tree, DIRECTORIES, 1000)?;
    publish(&tool, "base", &tree)?;
    tool.json(&["fork", "base:base", "work"])?;
    let mounted = Mounted::fresh(&tool, "work")?;
    let other = mounted.at.join("writer");
    make_directory(&other)?;
    let env = context.env;
    let mut figures = Vec::new();
    // Changed files of one, a hundred, ten thousand; only the second has a target.
    for (files, turns) in [(1, 20), (10_000, 3)] {
        let mut seconds = Vec::new();
        for turn in 0..turns {
            change(&mounted.at, files, turn)?;
            let name = format!("s{files}-{turn}");
            let (took, _) = timed(env, || tool.json(&["snapshot".as_ref(), "--name".as_ref(), name.as_ref(), mounted.at.as_os_str()]))?;
            seconds.push(took * 1e3);
        }
        mounted.flush()?;
        let measured = format!("{:.1} ms p50, {:.1} ms at most", percentile(&seconds, 0.5), percentile(&seconds, 1.0));
        let name = format!("local snapshot after {files} changed files, with the program's start");
        figures.push(Figure::new(name, "-", measured, Verdict::Info, json!({ "ms": seconds })).row(13));
    }
    context.phase(&format!("snapshot: {TURNS} times under a writer, {TURNS} windows of control"))?;
    let before = store.counts()?;
    let half = Deadline::new(env, context.limit.left() / 2);
    let (with, took) = turns(&mounted, &other.join("a"), env, Some(&tool), &half)?;
    mounted.flush()?;
    let sent = store.counts()?.since(&before);
    let (without, _) = turns(&mounted, &other.join("b"), env, None, &context.limit)?;
    mounted.flush()?;
    mounted.unmount()?;
    let (pause, control) = (percentile(&with, 0.99) * 1e3, percentile(&without, 0.99) * 1e3);
    let (cuts, controls) = (with.len(), without.len());
    let measured = format!("{pause:.1} ms p99 of {cuts}, {control:.1} ms of {controls} in the control run");
    let values = json!({ "p99_ms": pause, "control_p99_ms": control, "p50_ms": percentile(&with, 0.5) * 1e3 });
    // Where the writer alone waits as long, the machine is what was measured.
    let verdict = if control > 5.0 || cuts.min(controls) < TURNS as usize { Verdict::Void } else { Verdict::of(pause <= 5.0) };
    figures.push(Figure::new("longest write during a snapshot of 100 changed files", "p99 <= 5 ms", measured, verdict, values).row(13));
    let p50 = percentile(&took, 0.5) * 1e3;
    let measured = format!("{p50:.1} ms, with the program's start");
    figures.push(Figure::new("snapshot until local", "p50 <= 15 ms", measured, Verdict::of(p50 <= 15.0), json!({ "p50_ms": p50 })).row(13));
    // The writer's own 4 MiB may be sent once for each snapshot.
    let delta = u64::from(CHANGED) * CHANGED_BYTES as u64;
    let each = sent.up / (with.len() as u64).max(1);
    let own = 4u64 << 20;
    let within = each <= delta + own + (256 << 10);
    let measured = format!("{} KiB each, {:.1} puts each", each >> 10, sent.puts as f64 / with.len().max(1) as f64);
    let target = format!("<= {} KiB changed + 256 KiB", (delta + own) >> 10);
    figures.push(
        Figure::new("sent for a snapshot", target, measured, Verdict::of(within), json!({ "bytes": each, "puts": sent.puts })).row(13),
    );
    Ok(figures)
}

/// The longest write within each window, and how long the window was.
fn turns(mounted: &Mounted, file: &Path, env: &Env, tool: Option<&Tool>, until: &Deadline) -> Result<(Vec<f64>, Vec<f64>)> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| writer(file, &done, env));
        let mut windows = Vec::new();
        let mut work = || -> Result<()> {
            for turn in 0..TURNS {
                if until.passed() && turn > 0 {
                    break;
                }
                change(&mounted.at, CHANGED, turn)?;
                let from = env.monotonic().as_secs_f64();
                match tool {
                    Some(tool) => {
                        let name = format!("turn-{turn}");
                        tool.json(&["snapshot".as_ref(), "--name".as_ref(), name.as_ref(), mounted.at.as_os_str()])?;
                    }
                    // The same program for the same time, with nothing to cut.
                    None => mounted.status().map(drop)?,
                }
                windows.push((from, env.monotonic().as_secs_f64()));
            }
            Ok(())
        };
        let worked = work();
        done.store(true, Relaxed);
        let waits = writing.join().map_err(|_| Error::internal("the writer panicked"))??;
        worked?;
        let longest = |from: f64, to: f64| waits.iter().filter(|(b, w)| b + w >= from && *b <= to).map(|(_, w)| *w).fold(0.0, f64::max);
        Ok((windows.iter().map(|(from, to)| longest(*from, *to)).collect(), windows.iter().map(|(from, to)| to - from).collect()))
    })
}
