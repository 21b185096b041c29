//! The client's side of the protocol.

use std::path::{Path, PathBuf};

use hiloop_types::{Error, ErrorKind, Result, ResultExt};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::protocol::{Body, Call, Progress, Reply, Request};
use super::socket;

/// A daemon, by its cache directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    dir: PathBuf,
}

/// Is told how far a call has come.
pub type OnProgress<'a> = &'a mut (dyn FnMut(Progress) + Send);

impl Client {
    /// The daemon of `dir`, whether it runs or not.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }
    /// The cache directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes a call; `None` where no daemon listens, or where it was about to end and did not take the call.
    ///
    /// # Errors
    /// The daemon's answer, or that it went away meanwhile.
    pub async fn try_call<T: DeserializeOwned>(&self, call: Call, progress: OnProgress<'_>) -> Result<Option<T>> {
        let Some(stream) = socket::connect(&self.dir).await? else { return Ok(None) };
        let place = || self.dir.join("daemon.sock").display().to_string();
        let (read, mut write) = stream.into_split();
        let mut line =
            serde_json::to_vec(&Request::new(call)).map_err(|e| Error::invalid(format!("the request cannot be encoded: {e}")))?;
        line.push(b'\n');
        if write.write_all(&line).await.is_err() {
            return Ok(None);
        }
        let mut read = BufReader::new(read);
        let mut answered = false;
        loop {
            let mut line = Vec::new();
            let n = match read.read_until(b'\n', &mut line).await {
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => 0,
                other => other.at(place())?,
            };
            if n == 0 && !answered {
                return Ok(None);
            }
            if n == 0 {
                return Err(Error::unavailable("the daemon went away before it answered")
                    .at(self.dir.display())
                    .hint(format!("see {} and try again", self.dir.join("daemon.log").display())));
            }
            answered = true;
            match Reply::parse(&line).at(place())?.body {
                Body::Progress(p) => progress(p),
                Body::Error(f) => return Err(f.into_error()),
                Body::Result(v) => {
                    let value =
                        serde_json::from_value(v).map_err(|e| Error::internal(format!("the daemon's answer is not understood: {e}")))?;
                    return Ok(Some(value));
                }
            }
        }
    }

    /// Makes a call to a daemon that must be there.
    ///
    /// # Errors
    /// As [`Self::try_call`]; `NotFound` where no daemon listens.
    pub async fn call<T: DeserializeOwned>(&self, call: Call, progress: OnProgress<'_>) -> Result<T> {
        self.try_call(call, progress).await?.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "no daemon runs for this cache directory")
                .at(self.dir.display())
                .hint("`mount` starts one; name another one with --cache-dir")
        })
    }
}
