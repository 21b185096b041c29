//! The switch as a Unix socket, for other processes: one command a line, one line of answer.
//!
//! `cut SEED`, `arm AFTER SEED`, `disarm`, `restore`, `state`. Answers start with `ok` or `error`; `restore` answers with the counts of
//! [`crate::Losses`], `state` with `on` or `cut` and the operations so far.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use crate::PowerCut;

/// Longest command line, bytes.
const LINE_MAX: u64 = 256;

/// Answers connections, one after the other, until the listener fails.
///
/// # Errors
/// Those of the listener.
pub fn serve(listener: &UnixListener, disk: &Arc<PowerCut>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        // A client that goes away in the middle concerns nobody else.
        let _ = converse(&stream, disk);
    }
}

fn converse(stream: &UnixStream, disk: &PowerCut) -> io::Result<()> {
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if io::Read::take(&mut lines, LINE_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer = execute(&line, disk);
        writeln!(&mut &*stream, "{answer}")?;
    }
}

fn execute(line: &str, disk: &PowerCut) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let numbers: Option<Vec<u64>> = words.iter().skip(1).map(|w| w.parse().ok()).collect();
    match (words.first().copied(), numbers.as_deref()) {
        (Some("cut"), Some([seed])) => disk.cut(*seed),
        (Some("arm"), Some([after, seed])) => disk.arm(*after, *seed),
        (Some("disarm"), Some([])) => disk.disarm(),
        (Some("restore"), Some([])) => return format!("ok {}", disk.restore()),
        (Some("state"), Some([])) => return format!("ok {} steps={}", if disk.is_cut() { "cut" } else { "on" }, disk.steps()),
        _ => return "error: cut SEED | arm AFTER SEED | disarm | restore | state".to_owned(),
    }
    "ok".to_owned()
}
