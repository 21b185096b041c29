//! What `docs/runbook.md` tells people to type, and the metrics that it names, must exist.

use clap::Parser;

use super::args::Cli;
use crate::telemetry::names;

const RUNBOOK: &str = include_str!("../../../docs/runbook.md");

/// What stands in backticks, and the lines of its blocks without their remarks.
fn spans() -> Vec<String> {
    let mut out = Vec::new();
    for (i, part) in RUNBOOK.split("```").enumerate() {
        if i % 2 == 1 {
            out.extend(part.lines().map(|l| l.split(" #").next().unwrap_or_default().trim().to_owned()));
        } else {
            out.extend(part.split('`').skip(1).step_by(2).map(|s| s.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
    }
    out
}

#[test]
fn every_command_of_the_runbook_is_one() {
    let commands: Vec<String> = spans()
        .into_iter()
        .filter_map(|s| match s.strip_prefix("ctl ") {
            Some(rest) => Some(format!("sandbox-workspace ctl {rest}")),
            None => s.starts_with("sandbox-workspace ").then_some(s),
        })
        .filter(|s| s != "sandbox-workspace ctl")
        .collect();
    assert!(commands.len() > 12, "{commands:?}");
    for command in &commands {
        // Names of workspaces are in small letters.
        let words = command.split(' ').map(|w| w.replace("URL", "file:///s").replace("NAME", "name"));
        if let Err(e) = Cli::try_parse_from(words) {
            panic!("{command}: {e}");
        }
    }
}

#[test]
fn every_metric_of_the_runbook_is_one() {
    let named: Vec<String> = spans().into_iter().filter(|s| s.starts_with("hiloop_")).collect();
    assert!(named.len() > 5, "{named:?}");
    for span in named {
        let name = span.split(['{', ' ']).next().unwrap_or_default();
        assert!(names::ALL.iter().any(|m| name == m.name || name.strip_suffix("_total") == Some(m.name)), "{span}");
    }
}
