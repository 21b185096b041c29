//! Stores that workspaces of a run are kept in, and what was asked of them: a directory, or a real S3 server behind a shaper that gives
//! it the latency and bandwidth of a remote one.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hiloop_types::{Error, Result};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::process::cpu_of;
use crate::tree::make_directory;
use crate::watch::{Event, Watch, objects};

const KEY: &str = "bench-key";
const SECRET: &str = "bench-secret";
const BUCKET: &str = "bucket";

/// How fast the shaped store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// 20 ms a GET, 40 ms a PUT, 125 MB/s in all, 60 MB/s a stream.
    Steady,
    /// The same with a tail to 200 and 900 ms, and 1 % of requests refused.
    Jitter,
    /// Bandwidth only.
    Undelayed,
}

impl Shape {
    /// As the shaper spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Jitter => "jitter",
            Self::Undelayed => "undelayed",
        }
    }
}

/// Requests and bytes of a store since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreCounts {
    /// Objects put.
    pub puts: u64,
    /// Objects or ranges read.
    pub gets: u64,
    /// All other requests.
    pub others: u64,
    /// Bytes sent to the store.
    pub up: u64,
    /// Bytes that it sent; 0 where only opens can be seen.
    pub down: u64,
}

impl StoreCounts {
    /// What came between `before` and this.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            puts: self.puts.saturating_sub(before.puts),
            gets: self.gets.saturating_sub(before.gets),
            others: self.others.saturating_sub(before.others),
            up: self.up.saturating_sub(before.up),
            down: self.down.saturating_sub(before.down),
        }
    }
}

/// Has a program killed when the thread that starts it ends: who kills the harness must not leave servers behind.
///
/// To be called from the main thread, which ends with the process.
pub fn dies_with_us(command: &mut Command) -> &mut Command {
    let die = || nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(std::io::Error::from);
    // SAFETY: between fork and exec only a system call is made, nothing is allocated and no lock taken.
    unsafe { command.pre_exec(die) }
}

/// A program that is stopped with its value.
pub struct Service(Child);

impl Service {
    /// Starts a program whose output goes to `log`.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let file = std::fs::File::create(log).map_err(|e| Error::io(log.display(), &e))?;
        let copy = file.try_clone().map_err(|e| Error::io(log.display(), &e))?;
        let child = dies_with_us(command).stdin(Stdio::null()).stdout(file).stderr(copy).spawn();
        child.map(Self).map_err(|e| Error::io(command.get_program().display(), &e))
    }
    /// Its number.
    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }
    /// Whether it ended by itself.
    pub fn ended(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(Some(_)))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // The child is ours and not yet waited for, so its number cannot be another's.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port of this machine that nobody listened on a moment ago.
///
/// # Errors
/// What the operating system says.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| Error::io("127.0.0.1", &e))?;
    Ok(listener.local_addr().map_err(|e| Error::io("127.0.0.1", &e))?.port())
}

/// Waits until `ready`, at most a minute.
///
/// # Errors
/// `Unavailable` after that.
pub fn await_that(what: &str, mut ready: impl FnMut() -> bool) -> Result<()> {
    for _ in 0..1200 {
        if ready() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(Error::unavailable(format!("waited a minute for {what}")))
}

enum Backing {
    Directory { watch: Box<Watch>, counts: StoreCounts, known: BTreeMap<PathBuf, u64> },
    Server { server: Service, shaper: Child, control: String },
}

/// A store.
pub struct Store {
    /// Its URL.
    pub url: String,
    /// The environment that a client needs.
    pub vars: Vec<(String, String)>,
    /// Where its objects lie on this disk.
    pub dir: PathBuf,
    backing: Backing,
}

/// The programs that serve S3.
#[derive(Clone, Debug)]
pub struct S3Programs {
    /// versitygw.
    pub server: PathBuf,
    /// store-proxy.
    pub shaper: PathBuf,
}

impl Store {
    /// A directory.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn directory(dir: &Path) -> Result<Self> {
        make_directory(dir)?;
        let backing = Backing::Directory { watch: Box::new(Watch::new(dir)?), counts: StoreCounts::default(), known: objects(dir, "")? };
        Ok(Self { url: format!("file://{}", dir.display()), vars: Vec::new(), dir: dir.to_owned(), backing })
    }

    /// A server over a directory, behind a shaper.
    ///
    /// # Errors
    /// Where a program is missing or does not answer.
    pub fn shaped(dir: &Path, programs: &S3Programs, shape: Shape) -> Result<Self> {
        make_directory(&dir.join(BUCKET))?;
        let port = free_port()?;
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new(&programs.server);
        command.args(["-q", "--access", KEY, "--secret", SECRET, "--port", &address, "posix"]).arg(dir);
        let mut server = Service::start(&mut command, &dir.with_extension("server.log"))?;
        await_that("the S3 server", || server.ended() || TcpStream::connect(&address).is_ok())?;
        if server.ended() {
            return Err(Error::internal("the S3 server ended at once").at(dir.with_extension("server.log").display()));
        }
        let mut command = Command::new(&programs.shaper);
        command.args(["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--upstream", &address, "--profile", shape.name()]);
        let started = dies_with_us(&mut command).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut shaper = started.map_err(|e| Error::io(programs.shaper.display(), &e))?;
        let mut line = String::new();
        if let Some(out) = shaper.stdout.take() {
            BufReader::new(out).read_line(&mut line).map_err(|e| Error::io("store-proxy", &e))?;
        }
        let said: Value = serde_json::from_str(&line).map_err(|e| Error::internal(format!("store-proxy said {line:?}: {e}")))?;
        let at = |key: &str| said.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let url = format!("s3://{BUCKET}?prefix=bench&endpoint=http://{}&use_path_style=true&disable_https=true", at("listen"));
        let vars = [("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_REGION", "us-east-1")];
        let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let backing = Backing::Server { server, shaper, control: at("control") };
        Ok(Self { url, vars, dir: dir.to_owned(), backing })
    }

    /// What was asked of it so far.
    ///
    /// # Errors
    /// Where it cannot be found out.
    pub fn counts(&mut self) -> Result<StoreCounts> {
        match &mut self.backing {
            Backing::Directory { watch, counts, known } => {
                let events = watch.take()?;
                counts.gets += events.iter().filter(|e| matches!(e, Event::Opened(_))).count() as u64;
                // Objects in new directories may have come before the directory was watched, so new ones are counted by the listing.
                let now = objects(&self.dir, "")?;
                let dir = &self.dir;
                let object = |path: &Path| {
                    let key = path.strip_prefix(dir).unwrap_or(path);
                    !key.components().any(|c| c.as_os_str().as_encoded_bytes().starts_with(b"."))
                };
                for (_, size) in now.iter().filter(|(path, _)| !known.contains_key(*path) && object(path)) {
                    (counts.puts, counts.up) = (counts.puts + 1, counts.up + size);
                }
                for event in &events {
                    if let Event::Put(key) = event
                        && let Some(size) = now.get(&self.dir.join(key))
                        && known.contains_key(&self.dir.join(key))
                    {
                        (counts.puts, counts.up) = (counts.puts + 1, counts.up + size);
                    }
                }
                *known = now;
                Ok(*counts)
            }
            Backing::Server { control, .. } => {
                let state = get(control, "/control")?;
                let methods = state.pointer("/counters/methods").cloned().unwrap_or_default();
                let of = |method: &str, what: &str| methods.pointer(&format!("/{method}/{what}")).and_then(Value::as_u64).unwrap_or(0);
                let sum = |what: &str| ["GET", "PUT", "HEAD", "DELETE", "POST"].iter().map(|m| of(m, what)).sum::<u64>();
                let (puts, gets) = (of("PUT", "requests"), of("GET", "requests"));
                Ok(StoreCounts { puts, gets, others: sum("requests") - puts - gets, up: sum("bytes_up"), down: sum("bytes_down") })
            }
        }
    }

    /// Seconds of CPU that server and shaper used; 0 for a directory.
    ///
    /// # Errors
    /// Where one is gone.
    pub fn cpu(&self) -> Result<f64> {
        match &self.backing {
            Backing::Directory { .. } => Ok(0.0),
            Backing::Server { server, shaper, .. } => cpu_of(&[server.pid(), shaper.id() as i32]),
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Backing::Server { shaper, .. } = &mut self.backing {
            let _ = shaper.kill();
            let _ = shaper.wait();
        }
    }
}

/// Asks the shaper's control endpoint.
fn get(address: &str, path: &str) -> Result<Value> {
    let io = |e: std::io::Error| Error::io(address, &e);
    let mut stream = TcpStream::connect(address).map_err(io)?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: shaper\r\nConnection: close\r\n\r\n").as_bytes()).map_err(io)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(io)?;
    let (_, body) = answer.split_once("\r\n\r\n").ok_or_else(|| Error::internal("no body in the shaper's answer"))?;
    serde_json::from_str(body).map_err(|e| Error::internal(format!("the shaper answered {body:?}: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_counts_new_overwritten_and_read_objects() {
        let dir = std::env::temp_dir().join(format!("hiloop-bench-store-{}", std::process::id()));
        let mut store = Store::directory(&dir).unwrap();
        let put = |key: &str, text: &str| {
            let path = dir.join(key);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::create_dir_all(dir.join(".tmp")).unwrap();
            std::fs::write(dir.join(".tmp/x"), text).unwrap();
            std::fs::rename(dir.join(".tmp/x"), path).unwrap();
        };
        put("heads/a", "one");
        let first = store.counts().unwrap();
        assert_eq!((first.puts, first.up), (1, 3));
        put("heads/a", "three");
        put("packs/1/2", "12345678");
        std::fs::read(dir.join("heads/a")).unwrap();
        let more = store.counts().unwrap().since(&first);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!((more.puts, more.up, more.gets), (2, 13, 1));
    }
}
