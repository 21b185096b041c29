//! How the program ends when it does not do what it was asked for.

use std::process::ExitCode;
use std::sync::LazyLock;

use hiloop_types::Error;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The command line is wrong: exit code 2.
    Usage(Error),
    /// It was tried and did not work: exit code 1.
    Failed(Error),
    /// The result that was printed says what failed (a row of a fork, findings of `fsck`): exit code 1, no further message.
    Shown,
}

impl Failure {
    /// The error to show.
    pub fn error(&self) -> &Error {
        static SHOWN: LazyLock<Error> = LazyLock::new(|| Error::internal("the command failed as its result says"));
        match self {
            Self::Usage(e) | Self::Failed(e) => e,
            Self::Shown => &SHOWN,
        }
    }
    /// 1 or 2, as the contract has it.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Failed(_) | Self::Shown => ExitCode::from(1),
        }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Failed(e)
    }
}

/// What a command returns.
pub type Done<T = ()> = Result<T, Failure>;

/// Turns the error of a check on arguments into one of usage.
pub(super) fn usage<T>(checked: hiloop_types::Result<T>) -> Done<T> {
    checked.map_err(Failure::Usage)
}
