//! Round trips of single requests, for each way to read them: `cargo run -p hiloop-transport --example probe [REQUESTS]`.
//!
//! Caller and file system are one process, the file system does nothing, nobody pins the caller but where a row says so. On a machine
//! that does other work the figures say nothing.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hiloop_env::Env;
use hiloop_transport::null::{NullFs, init_config, mount};
use hiloop_transport::{Config, Session, Spin, allowed_cpus, bind};

struct Variant {
    name: &'static str,
    readers: usize,
    pin: bool,
    spin: Spin,
    /// Caller and reader on one CPU.
    together: bool,
}

const VARIANTS: [Variant; 5] = [
    Variant { name: "blocking", readers: 1, pin: false, spin: Spin::Off, together: false },
    Variant { name: "spin", readers: 1, pin: false, spin: Spin::Adaptive, together: false },
    Variant { name: "pinned", readers: 0, pin: true, spin: Spin::Off, together: false },
    Variant { name: "pinned + spin", readers: 0, pin: true, spin: Spin::Adaptive, together: false },
    Variant { name: "one CPU for both", readers: 1, pin: true, spin: Spin::Off, together: true },
];
const ROUNDS: usize = 3;

/// Asks for attributes that the kernel must not answer itself.
fn getattr(f: &File) -> io::Result<()> {
    // SAFETY: all zeros is a valid value.
    let mut out: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC;
    // SAFETY: an open descriptor, a path with its end, a buffer of the right type.
    let result = unsafe { libc::statx(f.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_BASIC_STATS, &mut out) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

fn timed(env: &Env, n: usize, mut each: impl FnMut(usize) -> io::Result<()>) -> io::Result<Duration> {
    let one = |i| {
        let start = env.monotonic();
        each(i)?;
        Ok(env.monotonic() - start)
    };
    Ok(median((0..n).map(one).collect::<io::Result<_>>()?))
}

/// Medians of GETATTR, LOOKUP of a missing name, create and close, WRITE of 4 KiB.
fn measure(env: &Env, dir: &Path, n: usize) -> io::Result<[Duration; 4]> {
    let file = OpenOptions::new().write(true).create_new(true).open(dir.join("file"))?;
    let missing = |i: usize| match std::fs::symlink_metadata(dir.join(format!("missing {i}"))) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map(drop),
    };
    Ok([
        timed(env, n, |_| getattr(&file))?,
        timed(env, n, missing)?,
        timed(env, n, |i| File::create_new(dir.join(i.to_string())).map(drop))?,
        timed(env, n, |i| file.write_all_at(&[0; 4096], (i % 256) as u64 * 4096))?,
    ])
}

fn run(v: &Variant, n: usize) -> io::Result<[Duration; 4]> {
    let env = Env::real();
    let dir = std::env::temp_dir().join(format!("hiloop-probe-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let (device, mounted) = mount(&dir)?;
    let config = Config { init: init_config(), readers: v.readers, pin: v.pin, spin: v.spin, ..Config::new(env.clone()) };
    let result = Session::start(vec![device], Arc::new(NullFs::new(env.clone())), config, |_, _| Ok(())).and_then(|_session| {
        // A thread of its own, whose CPU may be chosen.
        let path = mounted.path().to_owned();
        let cpu = allowed_cpus().first().copied().filter(|_| v.together);
        let caller = std::thread::spawn(move || {
            cpu.map_or(Ok(()), bind)?;
            measure(&env, &path, n)
        });
        caller.join().unwrap_or_else(|_| Err(io::Error::other("the caller panicked")))
    });
    drop(mounted);
    std::fs::remove_dir(&dir)?;
    result
}

fn main() -> io::Result<()> {
    let n = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(2000);
    let mut out = io::stdout().lock();
    writeln!(out, "{n} requests a row, median microseconds of {ROUNDS} rounds\n")?;
    writeln!(out, "{:18}{:>22}{:>22}{:>22}{:>22}", "", "GETATTR", "LOOKUP, missing", "create + close", "WRITE 4 KiB")?;
    // Round by round, so that what disturbs one variant disturbs its neighbours.
    let mut rounds = VARIANTS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (v, all) in VARIANTS.iter().zip(&mut rounds) {
            all.push(run(v, n)?);
        }
    }
    for (v, all) in VARIANTS.iter().zip(&rounds) {
        write!(out, "{:18}", v.name)?;
        for what in 0..4 {
            let mut figures: Vec<_> = all.iter().map(|r| r[what]).collect();
            figures.sort_unstable();
            let text: Vec<_> = figures.iter().map(|d| format!("{:.1}", d.as_secs_f64() * 1e6)).collect();
            write!(out, "{:>22}", text.join("/"))?;
        }
        writeln!(out)?;
    }
    Ok(())
}
