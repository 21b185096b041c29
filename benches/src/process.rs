//! What processes cost, where they run, and what the disk was told to flush: all from `/proc`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hiloop_types::{Error, Result};
use nix::unistd::{SysconfVar, sysconf};

use crate::run::run;

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).map_err(|e| Error::io(path, &e))
}

/// The fields of `/proc/PID/stat` after the program's name, of which the first is the state.
fn stat(pid: &str) -> Result<Vec<u64>> {
    let path = format!("/proc/{pid}/stat");
    let text = read(&path)?;
    let (_, rest) = text.rsplit_once(')').ok_or_else(|| Error::internal("no program name").at(&path))?;
    Ok(rest.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0)).collect())
}

fn ticks() -> Result<f64> {
    let hz = sysconf(SysconfVar::CLK_TCK).map_err(|e| Error::io("sysconf", &e.into()))?;
    Ok(hz.unwrap_or(100) as f64)
}

/// Seconds of CPU that these processes used so far.
///
/// # Errors
/// Where one is gone.
pub fn cpu_of(pids: &[i32]) -> Result<f64> {
    let mut seconds = 0.0;
    for pid in pids {
        let fields = stat(&pid.to_string())?;
        let by_ticks = (fields.get(11).unwrap_or(&0) + fields.get(12).unwrap_or(&0)) as f64 / ticks()?;
        // Ticks are 10 ms; the scheduler counts nanoseconds, but only of threads that live.
        let tasks = format!("/proc/{pid}/task");
        let mut precise = 0u64;
        for task in fs::read_dir(&tasks).map_err(|e| Error::io(&tasks, &e))?.flatten() {
            let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            precise += text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
        }
        seconds += by_ticks.max(precise as f64 / 1e9);
    }
    Ok(seconds)
}

/// A process and those that it started, directly or not.
///
/// # Errors
/// Where `/proc` cannot be read.
pub fn family(pid: i32) -> Result<Vec<i32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").map_err(|e| Error::io("/proc", &e))?.flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        // One that ended meanwhile has no parent any more.
        if let Some(parent) = stat(&child.to_string()).ok().and_then(|fields| fields.get(1).copied()) {
            parents.push((child, parent as i32));
        }
    }
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        family.extend(parents.iter().filter(|(_, p)| *p == parent).map(|(child, _)| *child));
        next += 1;
    }
    Ok(family)
}

/// Seconds of CPU of this process and its children that ended.
///
/// # Errors
/// What the operating system says.
pub fn own_cpu() -> Result<f64> {
    let fields = stat("self")?;
    Ok(fields.iter().skip(11).take(4).sum::<u64>() as f64 / ticks()?)
}

/// Bytes of memory that are resident now, over these processes.
///
/// # Errors
/// Where one is gone.
pub fn rss_of(pids: &[i32]) -> Result<u64> {
    pids.iter().map(|pid| status_kib(*pid, "VmRSS:")).try_fold(0, |sum, kib| Ok(sum + (kib? << 10)))
}

/// A line of `/proc/PID/status` in KiB.
fn status_kib(pid: i32, key: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = read(&path)?;
    let line = text.lines().find_map(|l| l.strip_prefix(key)?.trim().strip_suffix("kB")?.trim().parse().ok());
    line.ok_or_else(|| Error::internal(format!("no line {key}")).at(&path))
}

/// Open descriptors of a process.
///
/// # Errors
/// Where it is gone.
pub fn descriptors(pid: i32) -> Result<usize> {
    let path = format!("/proc/{pid}/fd");
    Ok(fs::read_dir(&path).map_err(|e| Error::io(&path, &e))?.count())
}

/// Where processes may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Client and daemon on one CPU: steady, no wake-up of another CPU in it.
    Pinned,
    /// As a user runs it.
    Free,
}

impl Mode {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pinned => "pinned",
            Self::Free => "free",
        }
    }
    fn cpus(self) -> Result<String> {
        let all = read("/sys/devices/system/cpu/online")?;
        // The last one: the first serves most interrupts.
        let last = all.trim().rsplit([',', '-']).next().unwrap_or("0").to_owned();
        Ok(match self {
            Self::Pinned => last,
            Self::Free => all.trim().to_owned(),
        })
    }
    /// Binds this process (so also the programs that it starts from now on) and these processes with all their threads.
    ///
    /// # Errors
    /// Where `taskset` fails, for instance since a process is gone.
    pub fn bind(self, pids: &[i32]) -> Result<()> {
        let cpus = self.cpus()?;
        for pid in pids.iter().copied().chain([std::process::id() as i32]) {
            run(Path::new("taskset"), &["-acp", &cpus, &pid.to_string()], Path::new("/"), &[], None)?;
        }
        Ok(())
    }
}

/// Flushes that the disk below a path completed so far; none where the device has no volatile cache (then the kernel sends none) or
/// the path is not on a disk.
///
/// # Errors
/// What the operating system says.
pub fn device_flushes(path: &Path) -> Result<Option<u64>> {
    let dev = fs::metadata(path).map_err(|e| Error::io(path.display(), &e))?.dev();
    let (major, minor) = (nix::sys::stat::major(dev), nix::sys::stat::minor(dev));
    let cache = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/queue/write_cache")).unwrap_or_default();
    if cache.trim() != "write back" {
        return Ok(None);
    }
    let text = read("/proc/diskstats")?;
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        (fields.first()?.parse() == Ok(major) && fields.get(1)?.parse() == Ok(minor)).then(|| fields.get(18)?.parse().ok())?
    };
    Ok(text.lines().find_map(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_cpu_memory_and_descriptors() {
        let me = [std::process::id() as i32];
        assert!(cpu_of(&me).unwrap() > 0.0);
        assert!(rss_of(&me).unwrap() > 1 << 20);
        assert!(descriptors(me[0]).unwrap() >= 3);
        assert!(cpu_of(&[i32::MAX]).is_err());
    }
}
