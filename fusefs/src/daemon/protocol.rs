//! What the command line and the daemon of a cache directory say to each other over `<cache directory>/daemon.sock`.
//!
//! One connection carries one call: the client sends one line, a JSON [`Request`] of at most [`LINE_MAX`] bytes, and reads lines, each a
//! JSON [`Reply`]: any number of `progress`, then one `result` or `error`, then the end of the stream. A stream that ends without either
//! means that the daemon went away; the call may or may not have happened. Both sides state [`VERSION`] and refuse another one by name.
//! Unknown fields are ignored, so that fields may be added within a version.

use std::path::PathBuf;

use hiloop_engine::catalog::LostWindow;
use hiloop_engine::workspace::Durability;
use hiloop_types::{Error, ErrorKind, Name, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of the protocol.
pub const VERSION: u32 = 1;
/// Longest request, bytes: a mount point of 4 KiB, a store URL and names fit many times.
pub const LINE_MAX: usize = 64 * 1024;

/// One call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`] of the client.
    pub version: u32,
    /// What is asked.
    pub call: Call,
}

/// What can be asked of a daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Whether it answers: [`Hello`].
    Hello,
    /// Attach and mount: [`Mounted`].
    Mount(MountCall),
    /// Which of its mounts are meant: a list of [`MountInfo`].
    Find(Selector),
    /// Cut a snapshot: [`Snapshotted`].
    Snapshot {
        /// Of which workspace.
        of: Selector,
        /// Its name; one is made up where it is absent.
        name: Option<Name>,
        /// Answer only once it is replicated.
        wait: bool,
    },
    /// Publish all accepted writes: [`Flushed`].
    Flush(Selector),
    /// State: an object as `status` prints it.
    Status(Option<Selector>),
    /// Metrics as Prometheus text: a string.
    Metrics,
    /// Take the mount away, drain, give the head back: [`Unmounted`].
    Unmount {
        /// Which.
        of: Selector,
        /// Milliseconds that draining may take.
        timeout_ms: u64,
    },
    /// Answer when the mount has ended: `null`.
    Wait(Selector),
    /// Turn unshipped tails into workspaces: [`Recovery`].
    Recover {
        /// Store URL, canonical.
        store: String,
    },
}

/// Which of the daemon's workspaces is meant: all fields that are there must fit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selector {
    /// The mount point, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mountpoint: Option<PathBuf>,
    /// The workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Name>,
    /// Its store, canonical.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
}

/// What to mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MountCall {
    /// Store URL, canonical.
    pub store: String,
    /// What.
    #[serde(flatten)]
    pub what: Wanted,
    /// Where: an absolute path without symbolic links to an empty directory, which the client has checked.
    pub mountpoint: PathBuf,
    /// Set-user-id bits have no effect in it.
    #[serde(default)]
    pub nosuid: bool,
}

/// What a mount shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// A workspace, for write.
    Workspace(Opening),
    /// The tree that a SOURCE names now, for reading.
    ReadOnly(String),
}

/// How a workspace is opened for write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opening {
    /// The workspace.
    pub name: Name,
    /// What it starts from if it does not exist, as a SOURCE; absent: nothing.
    pub origin: Option<String>,
    /// What `fsync` waits for.
    pub durability: Durability,
    /// Unpublished bytes at which writers wait.
    pub backlog_limit: Option<u64>,
    /// Bytes that the workspace may hold, 0 for no limit.
    pub quota: Option<u64>,
    /// Fence a live writer without watching.
    pub take_over: bool,
    /// Dedup domain of a new workspace.
    pub domain: Option<Name>,
    /// It must exist: nothing is created.
    #[serde(default)]
    pub existing: bool,
}

/// Answer to [`Call::Hello`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The daemon's process.
    pub pid: u32,
    /// Version of the program.
    pub program: String,
    /// Its cache directory.
    pub cache_dir: PathBuf,
}

/// A mount of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MountInfo {
    /// Where.
    pub mountpoint: PathBuf,
    /// The workspace.
    pub workspace: Name,
    /// Its store.
    pub store: String,
    /// True where it is a tree under a lease, and no workspace is open.
    pub read_only: bool,
}

/// Answer to [`Call::Mount`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mounted {
    /// The workspace.
    pub workspace: Name,
    /// Epoch of the opening.
    pub epoch: u64,
    /// Identity of the published tree; absent while there is none.
    pub root: Option<String>,
    /// What is known about writes of earlier openings that were never published.
    pub lost_window: LostWindow,
    /// True where the workspace did not exist before.
    pub created: bool,
    /// Operations that the node's journal still held.
    pub recovered_operations: u64,
    /// True where nothing can be written through it.
    pub read_only: bool,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The daemon's process.
    pub pid: u32,
    /// The daemon's cache directory.
    pub cache_dir: PathBuf,
}

/// Answer to [`Call::Snapshot`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshotted {
    /// Its name.
    pub snapshot: Name,
    /// Identity of its tree; known once it is replicated.
    pub root: Option<String>,
    /// `local` or `replicated`.
    pub durability: Durability,
    /// Where it was cut.
    pub lineage: Cut,
    /// Why changed pages of mapped files may be missing in it; absent where none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsynced: Option<String>,
}

/// Where a snapshot was cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    /// The workspace.
    pub workspace: Name,
    /// Epoch of the opening.
    pub epoch: u64,
    /// Last record in it.
    pub sequence: u64,
}

/// Answer to [`Call::Flush`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flushed {
    /// The workspace.
    pub workspace: Name,
    /// Last record in a confirmed head.
    pub published: u64,
    /// Identity of the published tree.
    pub root: Option<String>,
    /// Why changed pages of mapped files may be missing in it; absent where none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsynced: Option<String>,
}

/// Answer to [`Call::Unmount`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unmounted {
    /// The workspace.
    pub workspace: Name,
    /// Last record in a confirmed head.
    pub published: u64,
    /// Accepted bytes that are not published: they are in the node's journal, which the daemon goes on publishing unless the workspace was fenced.
    pub left_bytes: u64,
    /// True where the head was given back, so that any node may open it.
    pub released: bool,
    /// True where files were still open in it: their next request fails.
    pub busy: bool,
}

/// Answer to [`Call::Recover`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// New workspaces, as `recover` prints them.
    pub forks: Vec<Value>,
}

/// One line of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// [`VERSION`] of the daemon.
    pub version: u32,
    /// What it says.
    #[serde(flatten)]
    pub body: Body,
}

/// What a line of an answer says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// It goes on.
    Progress(Progress),
    /// It is done.
    Result(Value),
    /// It failed.
    Error(Fault),
}

/// How far a call has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is being done.
    pub doing: String,
    /// Bytes that are left, where that is known.
    pub left_bytes: Option<u64>,
}

/// An error on its way to the client or the terminal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Its kind.
    #[serde(with = "kind")]
    pub kind: ErrorKind,
    /// What happened.
    pub message: String,
    /// Where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Fault {
    /// Takes an error apart.
    pub fn of(error: &Error) -> Self {
        let hint = error.hint_text().map(str::to_owned);
        // Places are shown in front of the sentence, the hint behind it in brackets.
        let mut shown = error.to_string();
        if let Some(h) = &hint {
            let tail = format!(" ({h})");
            shown.truncate(shown.strip_suffix(&tail).map_or(shown.len(), str::len));
        }
        let place = shown.strip_suffix(error.what()).and_then(|p| p.strip_suffix(": ")).filter(|p| !p.is_empty()).map(str::to_owned);
        Self { kind: error.kind(), message: error.what().to_owned(), place, hint }
    }
    /// The error again.
    pub fn into_error(self) -> Error {
        let mut e = Error::new(self.kind, self.message);
        if let Some(p) = self.place {
            e = e.at(p);
        }
        match self.hint {
            Some(h) => e.hint(h),
            None => e,
        }
    }
}

impl Reply {
    /// A line of this version.
    pub fn new(body: Body) -> Self {
        Self { version: VERSION, body }
    }
    /// The line, with its end.
    pub fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_else(|e| {
            let fault = Fault { kind: ErrorKind::Internal, message: format!("cannot encode an answer: {e}"), place: None, hint: None };
            serde_json::json!({ "version": VERSION, "error": fault }).to_string().into_bytes()
        });
        line.push(b'\n');
        line
    }
    /// Reads a line of a daemon.
    ///
    /// # Errors
    /// `Invalid` for what is no reply, or one of another version.
    pub fn parse(line: &[u8]) -> Result<Self> {
        check_version(line, "the daemon", "restart the daemon once its workspaces are unmounted, so that it runs this version")?;
        serde_json::from_slice(line).map_err(|e| Error::invalid(format!("the daemon's answer cannot be read: {e}")))
    }
}

impl Request {
    /// A call of this version.
    pub fn new(call: Call) -> Self {
        Self { version: VERSION, call }
    }
    /// Reads a line of a client.
    ///
    /// # Errors
    /// `Invalid` for what is no request, or one of another version.
    pub fn parse(line: &[u8]) -> Result<Self> {
        check_version(line, "the client", "use the version of the program that the daemon runs")?;
        serde_json::from_slice(line).map_err(|e| Error::invalid(format!("the request cannot be read: {e}")))
    }
}

fn check_version(line: &[u8], who: &str, hint: &str) -> Result<()> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let found: Versioned =
        serde_json::from_slice(line).map_err(|e| Error::invalid(format!("{who} sent something else than JSON with a version: {e}")))?;
    if found.version != VERSION {
        return Err(Error::invalid(format!("{who} speaks protocol {}, this program speaks {VERSION}", found.version)).hint(hint));
    }
    Ok(())
}

mod kind {
    use hiloop_types::ErrorKind;
    use serde::{Deserialize, Deserializer, Serializer};

    const ALL: [ErrorKind; 10] = [
        ErrorKind::NotFound,
        ErrorKind::Invalid,
        ErrorKind::Conflict,
        ErrorKind::Fenced,
        ErrorKind::Unavailable,
        ErrorKind::Exhausted,
        ErrorKind::Corrupt,
        ErrorKind::Closed,
        ErrorKind::Denied,
        ErrorKind::Internal,
    ];

    pub fn serialize<S: Serializer>(kind: &ErrorKind, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(kind.as_str())
    }

    /// A kind of a later version is a defect as far as this one can tell.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<ErrorKind, D::Error> {
        let word = String::deserialize(d)?;
        Ok(ALL.into_iter().find(|k| k.as_str() == word).unwrap_or(ErrorKind::Internal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiloop_types::NameKind;

    fn calls() -> Vec<Call> {
        let name = Name::new(NameKind::Workspace, "demo").unwrap();
        let of = Selector { mountpoint: Some("/mnt/a b".into()), workspace: Some(name.clone()), store: Some("file:///s".into()) };
        vec![
            Call::Hello,
            Call::Mount(MountCall {
                store: "file:///s".into(),
                what: Wanted::Workspace(Opening {
                    name: name.clone(),
                    origin: Some("base:b1".into()),
                    durability: Durability::Replicated,
                    backlog_limit: Some(1 << 26),
                    quota: None,
                    take_over: true,
                    domain: None,
                    existing: false,
                }),
                mountpoint: "/mnt".into(),
                nosuid: true,
            }),
            Call::Mount(MountCall {
                store: "file:///s".into(),
                what: Wanted::ReadOnly("snapshot:s".into()),
                mountpoint: "/mnt".into(),
                nosuid: false,
            }),
            Call::Find(Selector::default()),
            Call::Snapshot { of: of.clone(), name: Some(name), wait: true },
            Call::Flush(of.clone()),
            Call::Status(None),
            Call::Status(Some(of.clone())),
            Call::Metrics,
            Call::Unmount { of: of.clone(), timeout_ms: 5000 },
            Call::Wait(of),
            Call::Recover { store: "file:///s".into() },
        ]
    }

    #[test]
    fn requests_and_replies_come_back_as_they_were() {
        for call in calls() {
            let request = Request::new(call);
            let line = serde_json::to_vec(&request).unwrap();
            assert!(!line.contains(&b'\n'));
            assert_eq!(Request::parse(&line).unwrap(), request);
        }
        let fault = Fault::of(&Error::fenced("taken over").at("demo").hint("recover"));
        for body in [
            Body::Progress(Progress { doing: "publishing".into(), left_bytes: Some(7) }),
            Body::Result(serde_json::json!({ "epoch": 3 })),
            Body::Result(Value::Null),
            Body::Error(fault.clone()),
        ] {
            let reply = Reply::new(body);
            assert_eq!(Reply::parse(&reply.line()).unwrap(), reply);
        }
        assert_eq!(Fault::of(&fault.clone().into_error()), fault);
    }

    #[test]
    fn todays_lines_are_pinned() {
        let of = Selector { mountpoint: Some("/mnt".into()), ..Selector::default() };
        let request = serde_json::to_string(&Request::new(Call::Unmount { of, timeout_ms: 9 })).unwrap();
        assert_eq!(request, r#"{"version":1,"call":{"unmount":{"of":{"mountpoint":"/mnt"},"timeout_ms":9}}}"#);
        let reply = Reply::new(Body::Error(Fault { kind: ErrorKind::NotFound, message: "m".into(), place: None, hint: None })).line();
        assert_eq!(String::from_utf8(reply).unwrap(), "{\"version\":1,\"error\":{\"kind\":\"not_found\",\"message\":\"m\"}}\n");
    }

    #[test]
    fn another_version_is_named() {
        let e = Request::parse(br#"{"version":2,"call":{"teleport":{}}}"#).unwrap_err();
        assert!(e.to_string().contains("protocol 2"), "{e}");
        assert!(Reply::parse(br#"{"version":7}"#).unwrap_err().to_string().contains("restart"));
        for bad in [&b""[..], b"{}", b"[]", br#"{"version":1}"#, br#"{"version":1,"call":"nothing"}"#, b"\xff"] {
            assert_eq!(Request::parse(bad).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }

    #[test]
    fn an_error_keeps_its_places_apart_from_its_words() {
        let e = Error::io("/etc/x", &std::io::Error::from_raw_os_error(libc::EACCES)).at("mount");
        let f = Fault::of(&e);
        assert_eq!((f.place.as_deref(), f.hint), (Some("mount: /etc/x"), None));
        assert_eq!(Fault::of(&Error::internal("x")).place, None);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_refused_or_read(line: Vec<u8>) {
            let _ = Request::parse(&line);
            let _ = Reply::parse(&line);
        }
    }
}
