//! A store as far away as a real one: cold open, cold read, replication, and what a writer feels at the backlog's bound.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use hiloop_types::{Error, Result};
use serde_json::json;

use super::{Context, percentile, publish};
use crate::figure::{Figure, Verdict};
use crate::mounts::Mounted;
use crate::process::cpu_of;
use crate::raw::Raw;
use crate::run::{number, timed};
use crate::sample::Spread;
use crate::statistics::Estimate;
use crate::tree::{tiny, tiny_content, tiny_path};
use crate::work::{MIB, block};

/// MiB of the file that is read cold, and of what is written to be replicated.
const COLD_MIB: u32 = 1024;
const NEW_MIB: u32 = 512;
const PAIRS: u32 = 3;
/// Cold opens of each size.
const OPENS: u32 = 7;
const MIB_F: f64 = 1_048_576.0;

fn at<T>(path: &Path, result: std::io::Result<T>) -> Result<T> {
    result.map_err(|e| Error::io(path.display(), &e))
}

/// Bytes that do not compress and do not repeat.
fn fill(path: &Path, mib: u32, from: u32) -> Result<()> {
    let mut file = at(path, File::create(path))?;
    (0..mib).try_for_each(|n| at(path, file.write_all(&block(from + n))))
}

/// Rows 9 and 10.
pub(super) fn cold(context: &mut Context<'_>) -> Result<Vec<Figure>> {
    let mut store = context.shaped()?;
    let tool = context.tool(&store);
    let mut figures = Vec::new();
    let tree = context.dir.join("tree");
    context.phase("shaped: publishing three bases")?;
    for (base, dirs, files) in [("small", 10, 100), ("large", 100, 1000)] {
        tiny(&tree, dirs, files)?;
        publish(&tool, base, &tree)?;
        tool.json(&["fork", &format!("base:{base}"), base])?;
    }
    at(&tree, fs::create_dir(&tree))?;
    fill(&tree.join("file"), COLD_MIB, 0)?;
    publish(&tool, "file", &tree)?;
    tool.json(&["fork", "base:file", "file"])?;

    context.phase("shaped: cold open")?;
    let (mut seconds, mut gets) = ([const { Vec::new() }; 2], [0, 0]);
    for round in 0..OPENS {
        let mut order = [(0, "small", 9, 99), (1, "large", 50, 421)];
        if !round.is_multiple_of(2) {
            order.reverse();
        }
        for (index, workspace, dir, file) in order {
            let before = store.counts()?;
            let cache = context.dir.join(format!("{workspace}-{round}.node"));
            let (took, mounted) = timed(context.env, || {
                let mounted = Mounted::with(&tool, workspace, cache, &[])?;
                let listed = at(&mounted.at, fs::read_dir(&mounted.at))?.count();
                let path = mounted.at.join(tiny_path(dir, file));
                let content = at(&path, fs::read_to_string(&path))?;
                let right = listed == [10, 100][index] && content == tiny_content(dir, file);
                if right { Ok(mounted) } else { Err(Error::corrupt("a cold open shows something else").at(path.display())) }
            })?;
            seconds[index].push(took);
            gets[index] = store.counts()?.since(&before).gets;
            mounted.unmount()?;
        }
    }
    let ratios: Vec<f64> = seconds[1].iter().zip(&seconds[0]).map(|(large, small)| large / small).collect();
    let ratio = Estimate::of(&ratios, 1).unwrap_or_default();
    let [small, large] = [0, 1].map(|n| Spread::of(&seconds[n]).median * 1e3);
    let measured = format!("{ratio}x ({large:.0} ms with {} GETs; {small:.0} ms with {})", gets[1], gets[0]);
    let values = json!({ "ratio": ratio, "seconds": seconds, "gets": gets });
    let name = "cold open of 100,000 files over that of 1,000, 20 ms a GET";
    figures.push(Figure::new(name, "<= 1.2x", measured, ratio.at_most(1.2), values).row(10));

    context.phase("shaped: cold read")?;
    let raw = Raw::open(&store, context.env)?;
    // A base's packs are below its name.
    let prefix = "packs/";
    let (mut over, mut fetched, mut load) = (Vec::new(), Vec::new(), 0.0f64);
    for round in 0..PAIRS {
        let mut raw_rate = 0.0;
        let mut ours_rate = 0.0;
        for raw_turn in [round.is_multiple_of(2), !round.is_multiple_of(2)] {
            let (before, cpu) = (store.counts()?, store.cpu()?);
            if raw_turn {
                let (took, bytes) = timed(context.env, || raw.read(prefix))?;
                raw_rate = bytes as f64 / took;
                continue;
            }
            let cache = context.dir.join(format!("file-{round}.node"));
            let mounted = Mounted::with(&tool, "file", cache.clone(), &[])?;
            let (took, ()) = timed(context.env, || read_file(&mounted.at.join("file")))?;
            ours_rate = f64::from(COLD_MIB) * MIB_F / took;
            fetched.push(store.counts()?.since(&before).down as f64 / (f64::from(COLD_MIB) * MIB_F));
            load = load.max((store.cpu()? - cpu) / took);
            mounted.unmount()?;
            at(&cache, fs::remove_dir_all(&cache))?;
        }
        over.push(ours_rate / raw_rate);
    }
    let part = Estimate::of(&over, 1).unwrap_or_default();
    // A shaper that is out of breath measures itself.
    let verdict = if load > 0.5 { Verdict::Void } else { part.at_least(0.9) };
    let measured = format!("{part} of the raw client; server and shaper {load:.2} of a core");
    figures
        .push(Figure::new("cold sequential read of 1 GiB", ">= 0.9 of the raw client", measured, verdict, json!({ "part": part })).row(9));
    let most = fetched.iter().copied().fold(0.0, f64::max);
    let values = json!({ "fetched": fetched });
    figures.push(Figure::new("bytes fetched per byte read", "<= 1.05", format!("{most:.3}"), Verdict::of(most <= 1.05), values).row(9));
    Ok(figures)
}

fn read_file(path: &Path) -> Result<()> {
    let mut file = at(path, File::open(path))?;
    let mut buffer = vec![0; MIB];
    (0..COLD_MIB).try_for_each(|n| {
        at(path, file.read_exact(&mut buffer))?;
        if buffer == block(n) { Ok(()) } else { Err(Error::corrupt(format!("MiB {n}")).at(path.display())) }
    })
}

/// Row 14.
pub(super) fn replication(context: &mut Context<'_>) -> Result<Vec<Figure>> {
    let store = context.shaped()?;
    let tool = context.tool(&store);
    let mounted = Mounted::fresh(&tool, "writer")?;
    let raw = Raw::open(&store, context.env)?;
    let sample = block(7).repeat(8);
    let bytes = f64::from(NEW_MIB) * MIB_F;
    let (mut part, mut per_core, mut load) = (Vec::new(), Vec::new(), 0.0f64);
    for round in 0..PAIRS {
        context.phase(&format!("shaped: replication, round {} of {PAIRS}", round + 1))?;
        let (took, ()) = timed(context.env, || raw.write(NEW_MIB / 8, &sample))?;
        let raw_rate = bytes / took;
        let (daemon, cpu) = (cpu_of(&[mounted.pid])?, store.cpu()?);
        let (took, ()) = timed(context.env, || {
            for n in 0..NEW_MIB / 32 {
                let from = 10_000 * (round + 1) + n * 32;
                fill(&mounted.at.join(format!("new-{round}-{n}")), 32, from)?;
            }
            mounted.flush().map(drop)
        })?;
        part.push(bytes / took / raw_rate);
        per_core.push(bytes / 1e6 / (cpu_of(&[mounted.pid])? - daemon));
        load = load.max((store.cpu()? - cpu) / took);
    }
    let (part, per_core) = (Estimate::of(&part, 1).unwrap_or_default(), Estimate::of(&per_core, 1).unwrap_or_default());
    let verdict = match (load > 0.5, part.at_least(0.85), per_core.at_least(350.0)) {
        (true, _, _) => Verdict::Void,
        (_, Verdict::Met, _) | (_, _, Verdict::Met) => Verdict::Met,
        (_, Verdict::Missed, Verdict::Missed) => Verdict::Missed,
        _ => Verdict::Undecided,
    };
    let measured = format!("{part} of the raw client, {per_core} MB per second of the daemon's CPU; server and shaper {load:.2} of a core");
    let target = ">= 0.85 of the raw client, or 350 MB/s a core";
    let values = json!({ "part": part, "mb_per_core_second": per_core });
    let mut figures = vec![Figure::new(format!("write {NEW_MIB} MiB until replicated"), target, measured, verdict, values).row(14)];

    context.phase("shaped: lag of a slow writer")?;
    let mut lags = Vec::new();
    for n in 0..60 {
        fill(&mounted.at.join(format!("slow-{n}")), 4, 90_000 + n * 4)?;
        lags.push(number(&mounted.status()?, "/lag_seconds")?);
        // 4 MiB each 200 ms: a fifth of what the link carries.
        std::thread::sleep(Duration::from_millis(200));
    }
    mounted.flush()?;
    mounted.unmount()?;
    let p99 = percentile(&lags, 0.99);
    let values = json!({ "p99": p99, "samples": lags });
    figures.push(Figure::new("lag below saturation, p99", "<= 5 s", format!("{p99:.2} s"), Verdict::of(p99 <= 5.0), values).row(14));
    Ok(figures)
}

/// Row 15.
pub(super) fn backlog(context: &mut Context<'_>) -> Result<Vec<Figure>> {
    const LIMIT_MIB: u32 = 48;
    let store = context.shaped()?;
    let tool = context.tool(&store);
    let limit = format!("{LIMIT_MIB}MiB");
    let mounted = Mounted::with(&tool, "bounded", context.dir.join("bounded.node"), &["--backlog-limit", &limit])?;
    let path = mounted.at.join("file");
    context.phase("shaped: a writer at the bound of its backlog")?;
    let done = AtomicBool::new(false);
    let env = context.env;
    let (waits, backlog) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<Vec<f64>> {
            let write = || {
                let mut file = at(&path, File::create(&path))?;
                let mut waits = Vec::new();
                for n in 0..512 {
                    let data = block(200_000 + n);
                    // 128 KiB a write, as programs do.
                    for piece in data.chunks(128 << 10) {
                        let (took, ()) = timed(env, || at(&path, file.write_all(piece)))?;
                        waits.push(took);
                    }
                }
                Ok(waits)
            };
            let result = write();
            done.store(true, Relaxed);
            result
        });
        let mut most = 0.0f64;
        let mut samples = 0u32;
        while !done.load(Relaxed) {
            most = most.max(number(&mounted.status()?, "/backlog_bytes")?);
            samples += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
        let waits = writer.join().map_err(|_| Error::internal("the writer panicked"))??;
        Ok::<_, Error>((waits, (most, samples)))
    })?;
    mounted.flush()?;
    mounted.unmount()?;
    let (most, samples) = backlog;
    let within = most <= f64::from(LIMIT_MIB) * MIB_F;
    let measured = format!("{:.1} MiB at most, in {samples} samples", most / MIB_F);
    let (p999, longest) = (percentile(&waits, 0.999), percentile(&waits, 1.0));
    Ok(vec![
        Figure::new(
            format!("backlog under a limit of {LIMIT_MIB} MiB"),
            "never above",
            measured,
            Verdict::of(within),
            json!({ "bytes": most }),
        )
        .row(15),
        Figure::new(
            "stall of a throttled writer, p99.9",
            "<= 1 s",
            format!("{:.0} ms, longest {:.0} ms", p999 * 1e3, longest * 1e3),
            Verdict::of(p999 <= 1.0),
            json!({ "p999": p999, "longest": longest, "writes": waits.len() }),
        )
        .row(15),
    ])
}
