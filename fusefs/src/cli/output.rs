//! Everything that the program prints: results to standard output, messages and errors to standard error.

use std::io::{self, Write};

use hiloop_types::Result;
use serde::Serialize;

use super::failure::Failure;
use crate::daemon::protocol::Fault;

/// How results are printed.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// One JSON object per line instead of text.
    pub json: bool,
}

impl Output {
    /// Prints a result: an object on one line, or what `text` makes of it.
    ///
    /// # Errors
    /// Where standard output cannot be written; a reader that went away is no error.
    pub fn result<T: Serialize>(self, value: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
        if !self.json {
            return print(&text(value));
        }
        let line = serde_json::to_string(value).map_err(|e| hiloop_types::Error::internal(format!("cannot encode the result: {e}")))?;
        print(&line)
    }

    /// Prints rows: an object each, or a table.
    ///
    /// # Errors
    /// As [`Self::result`].
    pub fn rows<T: Serialize>(self, rows: &[T], head: &[&str], cells: impl Fn(&T) -> Vec<String>) -> Result<()> {
        if self.json {
            return rows.iter().try_for_each(|r| self.result(r, |_| String::new()));
        }
        let body: Vec<Vec<String>> = rows.iter().map(cells).collect();
        print(&table(head, &body))
    }

    /// Says something that is no result, to standard error; not under `--json`.
    pub fn note(self, text: &str) {
        if !self.json {
            say(text);
        }
    }

    /// Prints why the program fails.
    pub fn failure(self, failure: &Failure) {
        say(&if self.json { failure_json(failure) } else { failure_text(&Fault::of(failure.error())) });
    }
}

fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let text = text.trim_end_matches('\n');
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        // `list | head` is content with what it got.
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(hiloop_types::Error::io("standard output", &e)),
        _ => Ok(()),
    }
}

/// A line on standard error. Nobody can be told where that fails.
pub(super) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", text.trim_end_matches('\n'));
}

fn failure_text(fault: &Fault) -> String {
    let mut text = format!("error: {}", fault.message);
    if let Some(place) = &fault.place {
        text.push_str(", at ");
        text.push_str(place);
    }
    if let Some(hint) = &fault.hint {
        text.push_str("\nhint: ");
        text.push_str(hint);
    }
    text
}

fn failure_json(failure: &Failure) -> String {
    let fault = Fault::of(failure.error());
    let code = match failure {
        Failure::Usage(_) => "usage",
        Failure::Failed(_) | Failure::Shown => fault.kind.as_str(),
    };
    let mut error = serde_json::json!({ "code": code, "message": fault.message });
    if let Some(place) = fault.place {
        error["place"] = place.into();
    }
    if let Some(hint) = fault.hint {
        error["hint"] = hint.into();
    }
    serde_json::json!({ "error": error }).to_string()
}

fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |i: usize| rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count()).chain([head[i].len()]).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(c, w)| format!("{c:w$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut out = vec![line(&mut head.iter().copied())];
    out.extend(rows.iter().map(|r| line(&mut r.iter().map(String::as_str))));
    out.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiloop_types::Error;

    #[test]
    fn an_error_says_what_where_and_what_to_do() {
        let e = Error::invalid("the mount point is not empty").at("/mnt/a").hint("mount on an empty directory");
        assert_eq!(failure_text(&Fault::of(&e)), "error: the mount point is not empty, at /mnt/a\nhint: mount on an empty directory");
        let json: serde_json::Value = serde_json::from_str(&failure_json(&Failure::Failed(e.clone()))).unwrap();
        assert_eq!(json["error"]["code"], "invalid");
        assert_eq!(json["error"]["message"], "the mount point is not empty");
        assert_eq!(json["error"]["place"], "/mnt/a");
        let usage: serde_json::Value = serde_json::from_str(&failure_json(&Failure::Usage(e))).unwrap();
        assert_eq!(usage["error"]["code"], "usage");
    }

    #[test]
    fn tables_line_up() {
        let rows = vec![vec!["a".into(), "1".into()], vec!["long-name".into(), "22".into()]];
        assert_eq!(table(&["NAME", "N"], &rows), "NAME       N\na          1\nlong-name  22");
    }
}
