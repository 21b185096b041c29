//! What a run found: as JSON for `compare`, as tables for the terminal, as one HTML file with charts.

mod chart;
mod compare;
mod html;
mod table;

use std::fs;
use std::path::Path;

use hiloop_types::{Error, Result};
use serde::{Deserialize, Serialize};

pub use compare::compare;
pub use html::html;
pub use table::tables;

use crate::cell::Cell;
use crate::figure::Figure;
use crate::machine::Machine;

/// Version of the JSON.
const FORMAT: u32 = 1;

/// A run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Version of this format.
    pub format: u32,
    /// The command that was run.
    pub command: String,
    /// Where.
    pub machine: Machine,
    /// How long it took.
    pub seconds: f64,
    /// Rows of the matrix with the seconds that each took.
    pub budget: Vec<(String, f64)>,
    /// Versions of peers.
    pub versions: Vec<(String, String)>,
    /// Steps on targets.
    pub cells: Vec<Cell>,
    /// Figures, those of the table of targets first.
    pub figures: Vec<Figure>,
    /// Rows that could not be run to their end.
    pub failed: Vec<String>,
    /// What a reader should know: targets that could not be started, and why.
    pub notes: Vec<String>,
}

impl Report {
    /// An empty one.
    pub fn new(command: String, machine: Machine) -> Self {
        Self { format: FORMAT, command, machine, ..Self::default() }
    }
    /// Reads one.
    ///
    /// # Errors
    /// What the operating system says; Invalid where it is no report of this version.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).map_err(|e| Error::io(path.display(), &e))?;
        let report: Self =
            serde_json::from_slice(&text).map_err(|e| Error::invalid(format!("no report of `./dev bench`: {e}")).at(path.display()))?;
        if report.format != FORMAT {
            return Err(Error::invalid(format!("a report of format {}, this program reads {FORMAT}", report.format)).at(path.display()));
        }
        Ok(report)
    }
    /// Writes it as NAME.json and NAME.html.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn write(&self, stem: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).map_err(|e| Error::internal(e.to_string()))?;
        for (extension, content) in [("json", text), ("html", html(self).into_bytes())] {
            let path = stem.with_extension(extension);
            fs::write(&path, content).map_err(|e| Error::io(path.display(), &e))?;
        }
        Ok(())
    }
}

/// Seconds with three digits.
pub(crate) fn seconds(s: f64) -> String {
    match s {
        s if s >= 10.0 => format!("{s:.1} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.1 => format!("{:.0} ms", s * 1e3),
        s if s >= 0.01 => format!("{:.1} ms", s * 1e3),
        s if s >= 0.001 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.0} us", s * 1e6),
    }
}
