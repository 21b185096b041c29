//! The price of single requests on the floor: whether it is the floor that was measured when targets were set, and what ours adds.

use std::fs::{File, OpenOptions, symlink_metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use hiloop_types::{Error, Result};
use serde_json::json;

use super::Context;
use crate::figure::{Figure, Verdict};
use crate::process::Mode;
use crate::run::timed;
use crate::sample::Spread;
use crate::store::Store;
use crate::target::{Durability, Floor, Ours, Target};

/// Name of the figure that says whether ratios to the floor mean anything.
pub const VALID: &str = "the floor is that of floors.md 9.1, pinned";
/// Operations of a round.
const COUNT: u32 = 2000;
const ROUNDS: u32 = 5;
/// The slowest of three rounds there, microseconds: forced GETATTR, missing LOOKUP, create and close, WRITE of 4 KiB.
const KNOWN: [(&str, f64); 4] = [("GETATTR", 6.2), ("LOOKUP, missing", 7.4), ("create + close", 22.0), ("WRITE 4 KiB", 8.7)];
/// How far from it the floor may be.
const NEAR: f64 = 1.25;

pub(super) fn run(context: &mut Context<'_>) -> Result<Vec<Figure>> {
    let floor = Floor::new(context.dir)?;
    let store = Store::directory(&context.dir.join("store"))?;
    let ours = Ours::new("ours", &context.programs.ours, context.dir, store, Durability::Local, context.env)?;
    let targets: [(&str, Box<dyn Target>); 2] = [("floor", Box::new(floor)), ("ours", Box::new(ours))];
    let pids: Vec<i32> = targets.iter().flat_map(|(_, t)| t.pids()).collect();
    let mut figures = Vec::new();
    let mut near = true;
    for mode in [Mode::Pinned, Mode::Free] {
        context.phase(&format!("floor: single requests, {}", mode.name()))?;
        mode.bind(&pids)?;
        let mut micros = vec![[const { Vec::<f64>::new() }; 2]; KNOWN.len()];
        for round in 0..ROUNDS {
            for (at, (_, target)) in targets.iter().enumerate() {
                let dir = target.root().join(format!("{}-{round}", mode.name()));
                std::fs::create_dir(&dir).map_err(|e| Error::io(dir.display(), &e))?;
                for (operation, samples) in micros.iter_mut().enumerate() {
                    let (seconds, ()) = timed(context.env, || operate(operation, &dir).map_err(|e| Error::io(dir.display(), &e)))?;
                    samples[at].push(seconds * 1e6 / f64::from(COUNT));
                }
            }
        }
        for ((operation, known), [floor, ours]) in KNOWN.iter().zip(&micros) {
            let (floor, ours, over) = (Spread::of(floor), Spread::of(ours), Spread::of_ratios(ours, floor));
            near &= mode == Mode::Free || floor.median <= known * NEAR;
            let measured = format!("{:.1} us on the floor, {:.1} us on ours, {over}x", floor.median, ours.median);
            let values = json!({ "floor_us": floor, "ours_us": ours, "ratio": over });
            figures.push(Figure::new(format!("{operation}, {}", mode.name()), "-", measured, Verdict::Info, values));
        }
    }
    Mode::Free.bind(&pids)?;
    for (_, target) in targets {
        target.end()?;
    }
    let known: Vec<String> = KNOWN.iter().map(|(_, us)| format!("{us}")).collect();
    let target = format!("<= {NEAR}x of {} us", known.join(", "));
    let said = if near { "yes" } else { "no: ratios to it are void" };
    figures.insert(0, Figure::new(VALID, target, said, Verdict::of(near), json!({ "near": near })));
    Ok(figures)
}

fn operate(operation: usize, dir: &Path) -> io::Result<()> {
    match operation {
        0 => {
            let dir = File::open(dir)?;
            (0..COUNT).try_for_each(|_| forced_stat(&dir))
        }
        1 => (0..COUNT).try_for_each(|n| match symlink_metadata(dir.join(format!("missing-{n}"))) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => Err(io::Error::other(format!("a missing name: {other:?}"))),
        }),
        2 => (0..COUNT).try_for_each(|n| File::create_new(dir.join(format!("new-{n}"))).map(drop)),
        _ => {
            let file = OpenOptions::new().write(true).create(true).truncate(true).open(dir.join("written"))?;
            (0..COUNT).try_for_each(|n| file.write_all_at(&[n as u8; 4096], u64::from(n) * 4096))
        }
    }
}

/// A stat that the kernel must not answer itself.
fn forced_stat(dir: &File) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC;
    // SAFETY: zeros are a valid `statx`, which the kernel then fills.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, an empty path that ends with zero, and a structure of our own.
    let result = unsafe { libc::statx(dir.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_BASIC_STATS, &raw mut stat) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
