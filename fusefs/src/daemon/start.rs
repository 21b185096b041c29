//! Starting the daemon of a cache directory, or joining the one that is there.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use hiloop_env::Env;
use hiloop_types::{Error, ErrorKind, Result, ResultExt, limits};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::client::{Client, OnProgress};
use super::protocol::{Body, Call, Fault, Hello, Reply};

/// A daemon may take this long to open its directory: recovery reads the whole journal.
const STARTS: Duration = Duration::from_secs(600);
/// A log that is longer when a daemon starts is put aside as `daemon.log.1`; an older one is dropped.
const LOG_MAX: u64 = 16 * limits::MIB;
/// How often a daemon that another client starts is looked for.
const LOOK: Duration = Duration::from_millis(20);
/// Times that a daemon may end between its start and the call: each is one that ended because nothing was mounted.
const ATTEMPTS: usize = 16;

/// The log of a detached daemon.
pub fn log_file(dir: &Path) -> PathBuf {
    dir.join("daemon.log")
}

/// Makes `call` to the daemon of `client`'s directory, starting it with `arguments` where none runs.
///
/// # Errors
/// Why the daemon did not start; its answer.
pub async fn call<T: DeserializeOwned>(
    client: &Client,
    arguments: &[std::ffi::OsString],
    env: &Env,
    call: Call,
    progress: OnProgress<'_>,
) -> Result<T> {
    for _ in 0..ATTEMPTS {
        ensure(client, arguments, env).await?;
        if let Some(answer) = client.try_call(call.clone(), &mut *progress).await? {
            return Ok(answer);
        }
    }
    Err(Error::unavailable("the daemon ends again and again before it takes the call")
        .at(client.dir().display())
        .hint(format!("see {}", log_file(client.dir()).display())))
}

/// Returns once a daemon answers.
///
/// # Errors
/// Why it did not start.
pub async fn ensure(client: &Client, arguments: &[std::ffi::OsString], env: &Env) -> Result<Hello> {
    let deadline = env.monotonic() + STARTS;
    let mut quiet = |_| {};
    loop {
        if let Some(hello) = client.try_call(Call::Hello, &mut quiet).await? {
            return Ok(hello);
        }
        match spawn(client.dir(), arguments).await {
            Ok(()) => {}
            // Another daemon has the directory: it is starting, or just ending.
            Err(e) if e.kind() == ErrorKind::Conflict && env.monotonic() < deadline => tokio::time::sleep(LOOK).await,
            Err(e) => return Err(e),
        }
    }
}

/// Starts a detached daemon and returns once it listens.
async fn spawn(dir: &Path, arguments: &[std::ffi::OsString]) -> Result<()> {
    let program = std::env::current_exe().at("the program's own path")?;
    let log_path = log_file(dir);
    if std::fs::metadata(&log_path).is_ok_and(|m| m.len() > LOG_MAX) {
        let old = log_path.with_extension("log.1");
        std::fs::rename(&log_path, &old).at(old.display())?;
    }
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(&log_path).at(log_path.display())?;
    let mut command = Command::new(&program);
    command.arg("daemon").arg("--cache-dir").arg(dir).args(arguments).args(["--foreground", "--detached"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).current_dir("/");
    let mut child = command.spawn().at(program.display())?;
    let stdout = child.stdout.take().ok_or_else(|| Error::internal("the daemon was started without a pipe"))?;
    let mut line = Vec::new();
    let read = tokio::time::timeout(STARTS, BufReader::new(stdout).read_until(b'\n', &mut line)).await;
    let hint = format!("see {}", log_path.display());
    match read {
        Err(_) => Err(Error::unavailable("the daemon did not get ready").at(dir.display()).hint(hint)),
        Ok(Err(e)) => Err(Error::io("the daemon's answer", &e)),
        Ok(Ok(0)) => {
            let status = child.wait().await.at(program.display())?;
            Err(Error::internal(format!("the daemon ended at its start: {status}")).at(dir.display()).hint(hint))
        }
        Ok(Ok(_)) => match Reply::parse(&line)?.body {
            Body::Error(fault) => {
                child.wait().await.at(program.display())?;
                Err(fault.into_error())
            }
            _ => Ok(()),
        },
    }
}

/// Tells the client that waits on standard output how the start went, then closes that pipe.
///
/// # Errors
/// Where standard output cannot be turned over to the log.
pub fn report(result: &Result<()>) -> Result<()> {
    use std::io::Write;
    let body = match result {
        Ok(()) => Body::Result(serde_json::Value::Null),
        Err(e) => Body::Error(Fault::of(e)),
    };
    // The client may be gone; the daemon is not its child in spirit.
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(&Reply::new(body).line()).and_then(|()| out.flush());
    nix::unistd::dup2_stdout(std::io::stderr()).map_err(|e| Error::io("standard output", &e.into()))
}
