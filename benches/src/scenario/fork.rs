//! Forks: one, a hundred, a thousand children in one call; and whether a tree reads slower at the end of a long line of forks.

use std::fs;
use std::path::Path;

use hiloop_types::{Error, Result};
use serde_json::json;

use super::{Context, publish};
use crate::figure::{Figure, Verdict};
use crate::mounts::Mounted;
use crate::process::own_cpu;
use crate::run::timed;
use crate::sample::Spread;
use crate::statistics::Estimate;
use crate::tree::{sources, walk};

/// How long the line of forks is.
const DEPTHS: [u32; 3] = [0, 10, 1000];
const READS: u32 = 5;
const CALLS: u32 = 20;

pub(super) fn run(context: &mut Context<'_>) -> Result<Vec<Figure>> {
    let store = context.plain()?;
    let tool = context.tool(&store);
    let tree = context.dir.join("tree");
    sources(&tree, 1000)?;
    publish(&tool, "base", &tree)?;
    tool.json(&["fork", "base:base", "source"])?;
    let mut figures = Vec::new();
    for (children, target) in [(1u32, None), (100, None), (1000, Some(5.0))] {
        context.phase(&format!("fork x{children}"))?;
        let calls = if children == 1000 { 1 } else { CALLS.div_ceil(children) };
        let (mut seconds, mut cpu) = (Vec::new(), 0.0);
        for call in 0..calls {
            let mut args = vec!["fork".to_owned(), "workspace:source".to_owned()];
            args.extend((0..children).map(|c| format!("x{children}-{call}-{c}")));
            let before = own_cpu()?;
            let (took, _) = timed(context.env, || tool.json(&args))?;
            cpu += own_cpu()? - before;
            seconds.push(took);
        }
        let took = Spread::of(&seconds).median;
        let each = cpu / f64::from(calls * children) * 1e3;
        let measured = format!(
            "{:.1} ms, {:.2} ms a child; {each:.2} ms CPU a child with the program's start",
            took * 1e3,
            took * 1e3 / f64::from(children)
        );
        let verdict = target.map_or(Verdict::Info, |most| Verdict::of(took <= most));
        let values = json!({ "seconds": seconds, "cpu_ms_per_child": each });
        let said = target.map_or_else(|| "-".to_owned(), |most| format!("<= {most} s"));
        figures.push(Figure::new(format!("fork x{children} on file://"), said, measured, verdict, values).row(12));
        if children == 100 {
            // A hundred in one call show the price of a child, not that of a process.
            let name = "CPU of a child";
            figures.push(Figure::new(name, "<= 2 ms", format!("{each:.2} ms"), Verdict::of(each <= 2.0), json!({ "ms": each })).row(12));
            let child = took * 1e3 / f64::from(children);
            let verdict = Verdict::of(child <= 4.0);
            figures.push(Figure::new("time of a child", "<= 4 ms", format!("{child:.2} ms"), verdict, json!({ "ms": child })).row(12));
        }
    }
    context.phase("fork, mount, first ls: warm")?;
    let cache = context.dir.join("warm.node");
    let keep = Mounted::with(&tool, "source", cache.clone(), &[])?;
    read_all(&keep.at)?;
    let mut seconds = Vec::new();
    for n in 0..READS {
        let name = format!("warm-{n}");
        let (took, mounted) = timed(context.env, || {
            tool.json(&["fork", "workspace:source", &name])?;
            let mounted = Mounted::with(&tool, &name, cache.clone(), &[])?;
            fs::read_dir(&mounted.at).map_err(|e| Error::io(mounted.at.display(), &e))?.for_each(drop);
            Ok(mounted)
        })?;
        seconds.push(took);
        mounted.leave()?;
    }
    keep.unmount()?;
    let took = Estimate::of(&seconds, 1).unwrap_or_default();
    let measured = format!("{:.0} ms [{:.0}..{:.0}], with the start of two programs", took.median * 1e3, took.low * 1e3, took.high * 1e3);
    figures.push(
        Figure::new("fork + mount + first ls, warm", "<= 25 ms", measured, took.at_most(0.025), json!({ "seconds": seconds })).row(12),
    );

    context.phase("a line of a thousand forks")?;
    let mut last = "source".to_owned();
    let mut at_depth = vec![(0, last.clone())];
    for depth in 1..=DEPTHS[2] {
        let next = format!("line-{depth}");
        tool.json(&["fork", &format!("workspace:{last}"), &next])?;
        last = next;
        if DEPTHS.contains(&depth) {
            at_depth.push((depth, last.clone()));
        }
    }
    let mut samples = vec![Vec::new(); at_depth.len()];
    for round in 0..READS {
        for turn in 0..at_depth.len() {
            let index = if round.is_multiple_of(2) { turn } else { at_depth.len() - 1 - turn };
            let cache = context.dir.join(format!("depth-{round}-{index}.node"));
            let mounted = Mounted::with(&tool, &at_depth[index].1, cache.clone(), &[])?;
            let (took, ()) = timed(context.env, || read_all(&mounted.at))?;
            samples[index].push(took);
            mounted.unmount()?;
            fs::remove_dir_all(&cache).map_err(|e| Error::io(cache.display(), &e))?;
        }
    }
    for (index, (depth, _)) in at_depth.iter().enumerate().skip(1) {
        let ratios: Vec<f64> = samples[index].iter().zip(&samples[0]).map(|(a, b)| a / b).collect();
        let ratio = Estimate::of(&ratios, 1).unwrap_or_default();
        let verdict = if *depth == DEPTHS[2] { ratio.at_most(1.02) } else { Verdict::Info };
        let target = if *depth == DEPTHS[2] { "<= 1.02x" } else { "-" };
        let name = format!("cold read of 1,000 files at fork depth {depth} over depth 0");
        figures.push(Figure::new(name, target, format!("{ratio}x"), verdict, json!({ "ratio": ratio })).row(12));
    }
    Ok(figures)
}

fn read_all(at: &Path) -> Result<()> {
    let mut files = 0;
    for (path, meta) in walk(at)? {
        if meta.is_file() {
            files += 1;
            let read = fs::read(&path).map_err(|e| Error::io(path.display(), &e))?;
            if read.len() as u64 != meta.len() {
                return Err(Error::corrupt("a short read").at(path.display()));
            }
        }
    }
    if files == 1000 { Ok(()) } else { Err(Error::corrupt(format!("{files} files")).at(at.display())) }
}
