//! Many workspaces on one node: forks of one base, each a little changed; memory, descriptors, store cost.

use std::fs;

use hiloop_types::{Error, Result};
use serde_json::json;

use super::{Context, publish};
use crate::figure::{Figure, Verdict};
use crate::mounts::Mounted;
use crate::process::{cpu_of, descriptors, rss_of};
use crate::run::{anonymous, number, timed};
use crate::tree::sources;
use crate::watch::objects;

/// Files of the base, and of these each fork changes one in a hundred.
const FILES: u32 = 2000;
const STEPS: [u32; 3] = [1, 10, 100];
const MIB: u64 = 1 << 20;

pub(super) fn run(context: &mut Context<'_>) -> Result<Vec<Figure>> {
    let store = context.plain()?;
    let tool = context.tool(&store);
    let tree = context.dir.join("tree");
    sources(&tree, FILES)?;
    publish(&tool, "base", &tree)?;
    let stored = || Ok::<u64, Error>(objects(&store.dir, "")?.values().sum());
    let base = stored()?;
    let cache = context.dir.join("node");
    let mut mounted: Vec<Mounted> = Vec::new();
    let mut figures = Vec::new();
    let (mut churn, mut packs) = (0u64, 0usize);
    let held = |m: &Mounted| -> Result<u64> {
        let status = m.status()?;
        Ok((number(&status, "/residency/memory_nodes_bytes")? + number(&status, "/residency/memory_chunks_bytes")?) as u64)
    };
    let start = context.env.monotonic();
    for count in STEPS {
        context.phase(&format!("{count} workspaces at once"))?;
        for n in mounted.len() as u32..count {
            let name = format!("w{n}");
            tool.json(&["fork", "base:base", &name])?;
            mounted.push(Mounted::with(&tool, &name, cache.clone(), &[])?);
        }
        let Some(first) = mounted.first() else { continue };
        let idle = anonymous(first.pid)?;
        let idle_held = held(first)?;
        let (cpu, before) = (cpu_of(&[first.pid])?, objects(&store.dir, "packs")?.len());
        let (took, changed) =
            timed(context.env, || mounted.iter().enumerate().map(|(n, m)| change(m, n as u32, count)).sum::<Result<u64>>())?;
        churn += changed;
        let rss = rss_of(&[first.pid])?;
        let (active, active_held) = (anonymous(first.pid)?, held(first)?);
        for m in &mounted {
            m.flush()?;
        }
        packs += objects(&store.dir, "packs")?.len() - before;
        let over = active.saturating_sub(active_held);
        let measured = format!(
            "{} MiB over caches ({} idle), RSS {} MiB, {} descriptors, {:.2} s of CPU in {took:.2} s",
            over / MIB,
            idle.saturating_sub(idle_held) / MIB,
            rss / MIB,
            descriptors(first.pid)?,
            cpu_of(&[first.pid])? - cpu
        );
        let target = match count {
            1 => Some(64),
            100 => Some(256),
            _ => None,
        };
        let verdict = target.map_or(Verdict::Info, |most| Verdict::of(over <= most * MIB));
        let said = target.map_or_else(|| "-".to_owned(), |most| format!("<= {most} MiB over caches"));
        let values = json!({ "anonymous": active, "in_caches": active_held, "idle": idle, "rss": rss });
        figures.push(Figure::new(format!("memory of {count} active workspaces"), said, measured, verdict, values).row(16));
    }
    let seconds = context.env.monotonic().saturating_sub(start).as_secs_f64();
    let last = mounted.pop();
    mounted.into_iter().try_for_each(Mounted::leave)?;
    last.map_or(Ok(()), Mounted::unmount)?;
    let grown = stored()?;
    // Each step changes files of all workspaces again: churn is counted as written.
    let ratio = grown as f64 / (base + churn) as f64;
    let measured = format!("{ratio:.3}x: {} KiB for a base of {} KiB and {} KiB of changes", grown >> 10, base >> 10, churn >> 10);
    let values = json!({ "ratio": ratio, "base": base, "churn": churn, "stored": grown });
    figures.push(
        Figure::new("store of 100 forks with 1 % churn", "<= 1.10x (base + churn)", measured, Verdict::of(ratio <= 1.1), values).row(17),
    );
    let allowed = f64::from(STEPS.iter().sum::<u32>()).max(seconds);
    let measured = format!("{packs} packs in {seconds:.0} s of {} flushes", STEPS.iter().sum::<u32>());
    let verdict = Verdict::of(packs as f64 <= allowed);
    figures
        .push(Figure::new("packs of active workspaces", "<= 1 per flush or second", measured, verdict, json!({ "packs": packs })).row(17));
    Ok(figures)
}

/// Changes one file in a hundred; returns the bytes.
fn change(mounted: &Mounted, n: u32, turn: u32) -> Result<u64> {
    let mut bytes = 0;
    for k in 0..FILES / 100 {
        let file = (k * 97 + n * 13) % FILES;
        let path = mounted.at.join(format!("crate-{}/src-{}/module_{file}.rs", file / 400, file / 40));
        let mut content = fs::read(&path).map_err(|e| Error::io(path.display(), &e))?;
        content.splice(..0, format!("// workspace {n}, turn {turn}, file {file}\n").into_bytes());
        bytes += content.len() as u64;
        fs::write(&path, content).map_err(|e| Error::io(path.display(), &e))?;
    }
    Ok(bytes)
}
