//! Figures, and how they are shown.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a figure says about its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Within the target.
    Met,
    /// Beyond it.
    Missed,
    /// The interval lies on both sides of the target.
    Undecided,
    /// The measurement says nothing: its reference was missing or scattered too much.
    Void,
    /// There is no target.
    Info,
}

impl Verdict {
    /// Met where `within`.
    pub fn of(within: bool) -> Self {
        if within { Self::Met } else { Self::Missed }
    }
    /// As tables show it: a miss stands out.
    pub fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "MISSED",
            Self::Undecided => "undecided",
            Self::Void => "void",
            Self::Info => "-",
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Row of the table of targets; 0 of none.
    #[serde(default)]
    pub row: u8,
    /// What is measured.
    pub figure: String,
    /// What it should be, for people.
    pub target: String,
    /// What it was, for people.
    pub measured: String,
    /// Whether it is within the target.
    pub verdict: Verdict,
    /// The numbers behind it.
    pub values: Value,
}

impl Figure {
    /// A line of the table.
    pub fn new(figure: impl Into<String>, target: impl Into<String>, measured: impl Into<String>, verdict: Verdict, values: Value) -> Self {
        Self { row: 0, figure: figure.into(), target: target.into(), measured: measured.into(), verdict, values }
    }
}

impl Figure {
    /// As part of a row of the table of targets.
    #[must_use]
    pub fn row(self, row: u8) -> Self {
        Self { row, ..self }
    }
}
