//! Running programs: bounded in time, their standard error in the message when they fail.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use hiloop_env::Env;
use hiloop_types::{Error, Result};
use serde_json::Value;

/// After that a program that was started is killed: no command takes a tenth of it.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs `program` in `dir` with `input` as its standard input and returns what it printed.
///
/// # Errors
/// `Internal` where it cannot start, fails or outlives the limit, with what it said.
pub fn run<A: AsRef<OsStr>>(program: &Path, args: &[A], dir: &Path, vars: &[(&str, &str)], input: Option<&Path>) -> Result<String> {
    run_within(LIMIT, program, args, dir, vars, input)
}

/// As [`run`] with a limit of its own.
///
/// # Errors
/// As [`run`].
pub fn run_within<A: AsRef<OsStr>>(
    limit: Duration,
    program: &Path,
    args: &[A],
    dir: &Path,
    vars: &[(&str, &str)],
    input: Option<&Path>,
) -> Result<String> {
    let mut command = Command::new("timeout");
    command
        .args(["-k", "5", &format!("{:.3}", limit.as_secs_f64().max(0.001))])
        .arg(program)
        .args(args)
        .current_dir(dir)
        .envs(vars.iter().copied());
    command.stdin(match input {
        Some(path) => Stdio::from(fs::File::open(path).map_err(|e| Error::io(path.display(), &e))?),
        None => Stdio::null(),
    });
    let output = command.output().map_err(|e| Error::io(program.display(), &e))?;
    if !output.status.success() {
        let shown: Vec<_> = args.iter().map(|a| a.as_ref().to_string_lossy()).collect();
        let said = String::from_utf8_lossy(&output.stderr);
        let what = format!("`{} {}` failed ({}): {}", program.display(), shown.join(" "), output.status, said.trim());
        return Err(Error::internal(what).at(dir.display()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The binary under test, with the store of this run.
#[derive(Clone, Debug)]
pub struct Tool {
    /// The program.
    pub program: PathBuf,
    /// URL of the store.
    pub store: String,
    /// Where it runs.
    pub dir: PathBuf,
    /// Credentials for the store.
    pub vars: Vec<(String, String)>,
}

impl Tool {
    /// Runs a command with `--json` and returns its last result.
    ///
    /// # Errors
    /// As [`run`]; `Internal` for an answer that is not JSON.
    pub fn json<A: AsRef<OsStr>>(&self, args: &[A]) -> Result<Value> {
        let all: Vec<&OsStr> = std::iter::once(OsStr::new("--json")).chain(args.iter().map(AsRef::as_ref)).collect();
        let vars: Vec<(&str, &str)> = self.vars.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let said = run(&self.program, &all, &self.dir, &[&[("HILOOP_STORE", self.store.as_str())], vars.as_slice()].concat(), None)?;
        let line = said.lines().next_back().unwrap_or_default();
        serde_json::from_str(line).map_err(|e| Error::internal(format!("`sandbox-workspace` answered {line:?}: {e}")))
    }
}

/// A number in an answer, by JSON pointer.
///
/// # Errors
/// `Internal` where there is none: a figure must not be made of a missing number.
pub fn number(of: &Value, pointer: &str) -> Result<f64> {
    of.pointer(pointer).and_then(Value::as_f64).ok_or_else(|| Error::internal(format!("no number {pointer} in {of}")))
}

/// Seconds that `work` took, and its result.
///
/// # Errors
/// Those of `work`.
pub fn timed<T>(env: &Env, work: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let start = env.monotonic();
    let result = work()?;
    Ok((env.monotonic().saturating_sub(start).as_secs_f64(), result))
}

/// Anonymous memory of a process in bytes (`smaps_rollup`).
///
/// # Errors
/// What the operating system says, for instance that the process is gone.
pub fn anonymous(pid: i32) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).map_err(|e| Error::io(&path, &e))?;
    let kib = text.lines().find_map(|l| l.strip_prefix("Anonymous:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.ok_or_else(|| Error::internal("no line Anonymous").at(&path))? << 10)
}
