//! Our errors as the codes of CSI.
//!
//! The provisioner takes `Canceled`, `DeadlineExceeded`, `Unavailable` and `Aborted` for "may still be running" and asks again with the
//! same name; every other code is final to it, and may give a claim up. So whatever may pass by itself is `Unavailable`.

use hiloop_control::v1::{Refusal, refusal::Reason};
use hiloop_types::{Error, ErrorKind};
use tonic::{Code, Status};

/// The status of an error of the daemon.
pub(crate) fn of_error(e: &Error) -> Status {
    let code = match e.kind() {
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::Invalid => Code::InvalidArgument,
        // Another opening or mount of the same workspace, here or elsewhere: it passes, or is fenced when it falls silent.
        ErrorKind::Conflict | ErrorKind::Unavailable | ErrorKind::Closed => Code::Unavailable,
        ErrorKind::Fenced => Code::FailedPrecondition,
        ErrorKind::Exhausted => Code::ResourceExhausted,
        ErrorKind::Denied => Code::PermissionDenied,
        ErrorKind::Corrupt | ErrorKind::Internal => Code::Internal,
    };
    Status::new(code, e.to_string())
}

/// The status of a refusal.
pub(crate) fn of_refusal(r: &Refusal) -> Status {
    let code = match r.reason() {
        Reason::OtherClaim | Reason::OtherSize | Reason::OtherBase => Code::AlreadyExists,
        Reason::TooSmall => Code::OutOfRange,
        Reason::UnknownBase => Code::InvalidArgument,
        Reason::UnknownWorkspace => Code::NotFound,
        Reason::Deleted | Reason::Open | Reason::MountedElsewhere | Reason::TargetTaken => Code::FailedPrecondition,
        // The pod may start elsewhere.
        Reason::Draining | Reason::Unspecified => Code::Unavailable,
    };
    Status::new(code, r.message.clone())
}

/// `INVALID_ARGUMENT` with a sentence.
pub(crate) fn invalid(what: impl Into<String>) -> Status {
    Status::invalid_argument(what)
}

/// The daemon of another version answered nothing.
pub(crate) fn nothing() -> Status {
    Status::internal("the daemon answered nothing: is it of the same version?")
}
