//! The one public error of the engine: a kind that tells the caller what to do, and words that tell a person what happened.

use std::fmt;

/// What a caller can do about a failure. Edges translate these exactly once (errno, gRPC code, HTTP envelope).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The named thing does not exist.
    NotFound,
    /// The input is wrong; the same call will fail again.
    Invalid,
    /// Somebody else won, or the thing exists with other content.
    Conflict,
    /// Another session owns the workspace now; this one may only read.
    Fenced,
    /// The store or a peer cannot be reached now; the same call may succeed later.
    Unavailable,
    /// A limit, a quota or a disk is full.
    Exhausted,
    /// Stored bytes are not what they were: a checksum, a hash or a format does not hold.
    Corrupt,
    /// The workspace, journal or daemon is shut down or read-only after a failure.
    Closed,
    /// Permission was refused by the store or the operating system.
    Denied,
    /// A defect of ours.
    Internal,
}

impl ErrorKind {
    /// The word used in logs and `--json` output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
            Self::Fenced => "fenced",
            Self::Unavailable => "unavailable",
            Self::Exhausted => "exhausted",
            Self::Corrupt => "corrupt",
            Self::Closed => "closed",
            Self::Denied => "denied",
            Self::Internal => "internal",
        }
    }
}

/// An error that names what happened, where, and (when there is one) the remedy.
///
/// Shown as `what: where: cause (hint)`. Secrets never enter it: whoever formats a URL redacts it first.
#[derive(Debug, Clone)]
pub struct Error(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    kind: ErrorKind,
    what: String,
    places: Vec<String>,
    hint: Option<String>,
}

/// Result with the engine's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A new error of `kind`; `what` is a short sentence without a full stop.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, what: what.into(), places: Vec::new(), hint: None }))
    }
    /// [`ErrorKind::NotFound`].
    pub fn not_found(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, what)
    }
    /// [`ErrorKind::Invalid`].
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, what)
    }
    /// [`ErrorKind::Conflict`].
    pub fn conflict(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Conflict, what)
    }
    /// [`ErrorKind::Fenced`].
    pub fn fenced(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Fenced, what)
    }
    /// [`ErrorKind::Unavailable`].
    pub fn unavailable(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, what)
    }
    /// [`ErrorKind::Exhausted`].
    pub fn exhausted(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Exhausted, what)
    }
    /// [`ErrorKind::Corrupt`].
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, what)
    }
    /// [`ErrorKind::Closed`].
    pub fn closed(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Closed, what)
    }
    /// [`ErrorKind::Internal`].
    pub fn internal(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, what)
    }
    /// An operating-system error at a place (a path, a file of the journal).
    pub fn io(place: impl fmt::Display, err: &std::io::Error) -> Self {
        use std::io::ErrorKind as K;
        let kind = match err.kind() {
            K::NotFound => ErrorKind::NotFound,
            K::PermissionDenied => ErrorKind::Denied,
            K::AlreadyExists => ErrorKind::Conflict,
            K::StorageFull | K::QuotaExceeded => ErrorKind::Exhausted,
            K::InvalidInput => ErrorKind::Invalid,
            _ => ErrorKind::Internal,
        };
        Self::new(kind, err.to_string()).at(place)
    }
    /// Adds where it happened; the outermost place is shown first.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.0.places.push(place.to_string());
        self
    }
    /// Adds what the reader can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }
    /// The kind to branch on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
    /// The bare sentence, without places or hint.
    pub fn what(&self) -> &str {
        &self.0.what
    }
    /// The remedy, where one was given.
    pub fn hint_text(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for p in self.0.places.iter().rev() {
            write!(f, "{p}: ")?;
        }
        f.write_str(&self.0.what)?;
        if let Some(h) = &self.0.hint {
            write!(f, " ({h})")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// Adds places to errors on their way out.
pub trait ResultExt<T> {
    /// Adds where it happened.
    fn at(self, place: impl fmt::Display) -> Result<T>;
}

impl<T> ResultExt<T> for Result<T> {
    fn at(self, place: impl fmt::Display) -> Result<T> {
        self.map_err(|e| e.at(place))
    }
}

impl<T> ResultExt<T> for std::io::Result<T> {
    fn at(self, place: impl fmt::Display) -> Result<T> {
        self.map_err(|e| Error::io(place, &e))
    }
}
