//! `matrix.toml`: what is measured, how often, and within which time.

use std::collections::BTreeMap;

use hiloop_types::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};
use toml::de::{DeTable, DeValue};

use crate::process::Mode;
use crate::work::{Size, Step};

/// The matrix that this program was built with.
const TEXT: &str = include_str!("../matrix.toml");

/// The whole matrix.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    size: BTreeMap<String, Size>,
    suite: Vec<Suite>,
    scenario: Vec<Scenario>,
}

/// Steps on targets.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// Its name.
    pub name: String,
    /// Commands that run it.
    #[serde(rename = "in")]
    pub commands: Vec<String>,
    /// What it compares; the first is the disk.
    pub targets: Vec<String>,
    steps: Vec<String>,
    /// Where processes run.
    pub mode: Mode,
    size: String,
    /// Rounds.
    pub rounds: u32,
    /// How often an unsteady step is done again.
    pub repeats: u32,
    /// Time box of a step on a target, seconds.
    pub leg_seconds: u64,
    /// Time box of all of it, minutes.
    pub minutes: u64,
}

/// Figures of their own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Commands that run it.
    #[serde(rename = "in")]
    pub commands: Vec<String>,
    /// What must be installed for it.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Time box, minutes.
    pub minutes: u64,
}

/// A row of the matrix.
#[derive(Clone, Debug)]
pub enum Row {
    /// Steps on targets.
    Suite(Suite),
    /// Figures of its own.
    Scenario(Scenario),
}

impl Matrix {
    /// The built-in one.
    ///
    /// # Errors
    /// Invalid where it does not parse or names what does not exist.
    pub fn read() -> Result<Self> {
        Self::parse(TEXT)
    }

    fn parse(text: &str) -> Result<Self> {
        let table = DeTable::parse(text).map_err(|e| Error::invalid(e.to_string()).at("matrix.toml"))?;
        let value = Value::Object(object(table.get_ref())?);
        let matrix: Self = serde_json::from_value(value).map_err(|e| Error::invalid(e.to_string()).at("matrix.toml"))?;
        for suite in &matrix.suite {
            suite.steps()?;
            matrix.size(suite)?;
            if suite.targets.first().is_none_or(|t| t != "ext4") {
                return Err(Error::invalid(format!("the first target of `{}` must be ext4", suite.name)).at("matrix.toml"));
            }
        }
        Ok(matrix)
    }

    /// The rows that a command runs, or the one row of that name.
    ///
    /// # Errors
    /// NotFound with what there is.
    pub fn rows(&self, name: &str) -> Result<Vec<Row>> {
        let picks = |row: &str, commands: &[String]| row == name || commands.iter().any(|c| c == name);
        let scenarios = self.scenario.iter().filter(|s| picks(&s.name, &s.commands)).cloned().map(Row::Scenario);
        let suites = self.suite.iter().filter(|s| picks(&s.name, &s.commands)).cloned().map(Row::Suite);
        let rows: Vec<Row> = scenarios.chain(suites).collect();
        if rows.is_empty() {
            let names = self.suite.iter().map(|s| &s.name).chain(self.scenario.iter().map(|s| &s.name));
            let names: Vec<&str> = names.map(String::as_str).collect();
            return Err(
                Error::not_found(format!("nothing in the matrix is called {name}")).hint(format!("there are: {}", names.join(", ")))
            );
        }
        Ok(rows)
    }

    /// The sizes of a suite.
    ///
    /// # Errors
    /// Invalid for a name that there is not.
    pub fn size(&self, suite: &Suite) -> Result<Size> {
        let size = self.size.get(&suite.size).copied();
        size.ok_or_else(|| Error::invalid(format!("`{}` names size `{}`, which is not there", suite.name, suite.size)).at("matrix.toml"))
    }
}

impl Suite {
    /// Its steps; `all` and `sixteen` stand for many.
    ///
    /// # Errors
    /// Invalid for a name that there is not.
    pub fn steps(&self) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        for name in &self.steps {
            match name.as_str() {
                // Dropping the page cache is for a machine of one's own, builds need tools of their own.
                "all" => steps.extend(Step::ALL.iter().filter(|s| **s != Step::ReadDropped && !s.is_build())),
                "sixteen" => steps.extend(Step::SIXTEEN),
                name => {
                    let step = Step::ALL.iter().find(|s| s.id() == name);
                    steps.push(*step.ok_or_else(|| Error::invalid(format!("`{}` names step `{name}`", self.name)).at("matrix.toml"))?);
                }
            }
        }
        Ok(steps)
    }
}

/// TOML's values are JSON's but for dates, of which a matrix has none.
fn object(table: &DeTable<'_>) -> Result<Map<String, Value>> {
    table.iter().map(|(key, value)| Ok((key.get_ref().to_string(), json(value.get_ref())?))).collect()
}

fn json(value: &DeValue<'_>) -> Result<Value> {
    let number = |text: &str| serde_json::from_str(text).map_err(|_| Error::invalid(format!("{text} is no number")).at("matrix.toml"));
    Ok(match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(n) => number(n.as_str())?,
        DeValue::Float(n) => number(n.as_str())?,
        DeValue::Boolean(b) => Value::Bool(*b),
        DeValue::Array(items) => Value::Array(items.iter().map(|v| json(v.get_ref())).collect::<Result<_>>()?),
        DeValue::Table(table) => Value::Object(object(table)?),
        DeValue::Datetime(_) => return Err(Error::invalid("a matrix has no dates").at("matrix.toml")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_sound_and_fits_its_commands() {
        let matrix = Matrix::read().unwrap();
        for (command, limit) in [("smoke", 5), ("quick", 8), ("full", 60)] {
            let rows = matrix.rows(command).unwrap();
            let minutes: u64 = rows
                .iter()
                .map(|r| match r {
                    Row::Suite(s) => s.minutes,
                    Row::Scenario(s) => s.minutes,
                })
                .sum();
            assert!(minutes <= limit, "{command}: {minutes} minutes");
        }
        for row in matrix.rows("full").unwrap() {
            if let Row::Suite(suite) = row {
                let peers = suite.targets.iter().any(|t| t.starts_with("juicefs") || t.starts_with("ours-s3"));
                assert!(suite.rounds >= if peers { 3 } else { 7 }, "{}", suite.name);
            }
        }
    }

    #[test]
    fn mistakes_are_named() {
        let said = |text: &str| Matrix::parse(text).unwrap_err().to_string();
        assert!(said("size = 1").contains("invalid type"));
        assert!(said(&TEXT.replace("steps = [\"sixteen\"]", "steps = [\"seventeen\"]")).contains("seventeen"));
        assert!(said(&TEXT.replacen("size = \"smoke\"", "size = \"tiny\"", 1)).contains("tiny"));
        assert!(said(&TEXT.replacen("mode = \"free\"", "mood = 1", 1)).contains("mood"));
        assert!(Matrix::read().unwrap().rows("nothing").is_err());
    }
}
