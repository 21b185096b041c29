//! What the proxy is told to do.

use serde::{Deserialize, Serialize};

use crate::Profile;

/// The whole of what a proxy does; a new one replaces the old one, and its rules count from zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Plan {
    /// Speed of what is forwarded.
    pub profile: Profile,
    /// True: connections are refused, and those that were open are reset.
    pub outage: bool,
    /// For each request the first rule that fires decides.
    pub rules: Vec<Rule>,
}

/// A fault and the requests it is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What happens.
    pub fault: Fault,
    /// Methods, in capitals; empty: all.
    #[serde(default)]
    pub methods: Vec<String>,
    /// Start of the path, with bucket; empty: all.
    #[serde(default)]
    pub path_prefix: String,
    /// Only requests with (`true`) or without (`false`) `If-Match` or `If-None-Match`.
    #[serde(default)]
    pub conditional: Option<bool>,
    /// Chance of each request that fits, 0 to 1.
    #[serde(default = "always")]
    pub probability: f64,
    /// How many of those that fit are let through first.
    #[serde(default)]
    pub skip: u64,
    /// How often at most; absent: without end.
    #[serde(default)]
    pub count: Option<u64>,
    /// `Retry-After` of `slow_down`, seconds.
    #[serde(default = "one")]
    pub retry_after_s: u64,
    /// How long `delay` holds the answer back, ms.
    #[serde(default)]
    pub delay_ms: u64,
    /// How much of the body `cut_body` and `reset_during` let through; absent: half.
    #[serde(default)]
    pub after_bytes: Option<u64>,
}

fn always() -> f64 {
    1.0
}
fn one() -> u64 {
    1
}

impl Rule {
    /// A rule for every request.
    pub fn new(fault: Fault) -> Self {
        Self {
            fault,
            methods: Vec::new(),
            path_prefix: String::new(),
            conditional: None,
            probability: always(),
            skip: 0,
            count: None,
            retry_after_s: one(),
            delay_ms: 0,
            after_bytes: None,
        }
    }
}

/// What can happen to a request. Faults that need a successful answer pass over requests that the server refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// 503 with the body of S3's SlowDown and `Retry-After`; nothing is forwarded.
    SlowDown,
    /// The request is taken, nothing is forwarded and nothing is ever answered; the next plan resets the connection.
    Stall,
    /// Nothing is forwarded; the connection is reset (RST).
    ResetBefore,
    /// The request is applied; the connection is reset before the answer.
    ResetApplied,
    /// The connection is reset in the middle of the answer's body (GET only).
    ResetDuring,
    /// The answer's body ends early though the connection closes in order (GET only).
    CutBody,
    /// The request is applied; the answer is 500.
    ErrorApplied,
    /// The request is applied at once and answered late.
    Delay,
}

impl Fault {
    /// Every kind, in the order of the counters.
    pub const ALL: [Self; 8] = [
        Self::SlowDown,
        Self::Stall,
        Self::ResetBefore,
        Self::ResetApplied,
        Self::ResetDuring,
        Self::CutBody,
        Self::ErrorApplied,
        Self::Delay,
    ];
    /// Whether only an answer with a body can carry it.
    pub(crate) fn needs_body(self) -> bool {
        matches!(self, Self::ResetDuring | Self::CutBody)
    }
}

impl Plan {
    /// Why this plan cannot be, naming the field.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (n, rule) in self.rules.iter().enumerate() {
            if !(0.0..=1.0).contains(&rule.probability) {
                return Err(format!("rules[{n}].probability is {}, not 0 to 1", rule.probability));
            }
            if let Some(method) = rule.methods.iter().find(|m| m.is_empty() || m.bytes().any(|b| !b.is_ascii_uppercase())) {
                return Err(format!("rules[{n}].methods has {method:?}: methods are written in capitals"));
            }
        }
        Ok(())
    }
}
