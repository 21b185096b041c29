//! The machine that figures come from.

use std::fs;
use std::path::Path;

use hiloop_env::Env;
use serde::{Deserialize, Serialize};

use crate::mounts::mount_of;
use crate::run::run;

/// What a reader must know to compare figures.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Processor.
    pub cpu: String,
    /// CPUs online.
    pub cpus: u64,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Kernel release.
    pub kernel: String,
    /// File system and device of the scratch directory.
    pub disk: String,
    /// Whether the kernel flushes that disk (`write back`) or needs not.
    pub write_cache: String,
    /// Load average over one minute when the run began: above 1 times are worth little.
    pub load: f64,
    /// Commit of the checkout, with `+` where it has changes.
    pub commit: String,
    /// Seconds since 1970 when the run began.
    pub at: u64,
}

impl Machine {
    /// This machine; what cannot be found out stays empty.
    pub fn here(scratch: &Path, env: &Env) -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let field = |path: &str, key: &str| {
            let text = text(path);
            text.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_default().trim_matches([' ', ':', '\t']).to_owned()
        };
        let (cpuinfo, meminfo) = ("/proc/cpuinfo", "/proc/meminfo");
        let mount = mount_of(scratch);
        let device = mount.as_ref().map(|m| m.device.clone()).unwrap_or_default();
        let git = |args: &[&str]| run(Path::new("git"), args, Path::new("."), &[], None).unwrap_or_default().trim().to_owned();
        let dirty = if git(&["status", "--porcelain", "--untracked-files=no"]).is_empty() { "" } else { "+" };
        Self {
            cpu: field(cpuinfo, "model name"),
            cpus: text(cpuinfo).lines().filter(|l| l.starts_with("processor")).count() as u64,
            memory_mib: field(meminfo, "MemTotal").trim_end_matches(" kB").parse::<u64>().unwrap_or(0) >> 10,
            kernel: text("/proc/sys/kernel/osrelease"),
            disk: mount.map(|m| format!("{} on {}", m.kind, m.source)).unwrap_or_default(),
            write_cache: text(&format!("/sys/dev/block/{device}/queue/write_cache")),
            load: text("/proc/loadavg").split(' ').next().and_then(|l| l.parse().ok()).unwrap_or(0.0),
            commit: format!("{}{dirty}", git(&["rev-parse", "--short", "HEAD"])),
            at: env.wall().as_secs(),
        }
    }
    /// One line for people.
    pub fn line(&self) -> String {
        format!(
            "{} x {}, {} MiB, Linux {}, {} ({}), load {:.2}, commit {}",
            self.cpus, self.cpu, self.memory_mib, self.kernel, self.disk, self.write_cache, self.load, self.commit
        )
    }
}
