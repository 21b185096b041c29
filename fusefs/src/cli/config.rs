//! Where the daemon's options come from: flags, then the environment, then the configuration file.
//!
//! The keys of the file are the names of the flags, so there is one list of options and one place where each is checked: what the file
//! says is put behind the command line as flags, as far as neither the command line nor the environment says it.

use std::ffi::OsString;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use hiloop_types::{Error, Result, ResultExt};

use super::args::Cli;

/// Commands that read a configuration and take each flag from the environment, too.
const CONFIGURED: [&str; 2] = ["daemon", "check-config"];
/// How the command line, or the name of the file, gets into the file is no question: these are not keys.
const NOT_KEYS: [&str; 5] = ["config", "help", "version", "foreground", "detached"];

/// What is wrong.
#[derive(Debug)]
pub(super) enum Wrong {
    /// The command line.
    Line(clap::Error),
    /// The configuration file.
    File(Error),
}

/// The program's command line, with an environment variable for each flag of the daemon.
fn command() -> clap::Command {
    let with_env = |c: clap::Command| {
        c.mut_args(|a| match (a.get_long(), a.get_env()) {
            (Some(long), None) if !NOT_KEYS.contains(&long) || long == "config" => {
                // Kept for the life of the process, which parses its command line once or twice.
                let name: &'static str = Box::leak(format!("HILOOP_{}", long.replace('-', "_").to_ascii_uppercase()).into_boxed_str());
                a.env(name).hide_env(true)
            }
            _ => a,
        })
    };
    CONFIGURED.iter().fold(Cli::command(), |c, name| c.mut_subcommand(name, with_env))
}

/// Reads a command line.
pub(super) fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Cli, Wrong> {
    let mut line: Vec<OsString> = line.into_iter().collect();
    let mut command = command();
    let matches = command.try_get_matches_from_mut(line.clone()).map_err(Wrong::Line)?;
    if let Some((name, sub)) = matches.subcommand()
        && CONFIGURED.contains(&name)
        && let Some(file) = sub.get_one::<std::path::PathBuf>("config")
    {
        let known = command.find_subcommand(name).ok_or_else(|| Wrong::File(Error::internal("a command vanished")))?;
        line.extend(flags(file, known, sub).map_err(Wrong::File)?);
        let matches = command.try_get_matches_from_mut(line).map_err(|e| in_file(file, &e))?;
        return Cli::from_arg_matches(&matches).map_err(Wrong::Line);
    }
    Cli::from_arg_matches(&matches).map_err(Wrong::Line)
}

/// The command line was right without the file.
fn in_file(file: &Path, e: &clap::Error) -> Wrong {
    let text = e.to_string();
    let first = text.lines().next().unwrap_or_default();
    Wrong::File(Error::invalid(first.strip_prefix("error: ").unwrap_or(first)).at(file.display()))
}

/// What the file says, as flags.
fn flags(file: &Path, command: &clap::Command, said: &ArgMatches) -> Result<Vec<OsString>> {
    let text = std::fs::read_to_string(file).at(file.display())?;
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
        // The whole message shows the line of the file, which may hold what is nobody's business.
        Error::invalid(format!("is no TOML: {}", e.message())).at(file.display())
    })?;
    let mut out = Vec::new();
    for (key, value) in &table {
        let arg = command.get_arguments().find(|a| a.get_long() == Some(key.as_str()) && !NOT_KEYS.contains(&key.as_str()));
        let Some(arg) = arg else {
            return Err(Error::invalid(format!("{key:?} is no option of `{}`", command.get_name()))
                .at(file.display())
                .hint("its keys are the long names of the flags: see --help"));
        };
        let by_others = said.value_source(arg.get_id().as_str()).is_some_and(|s| s != ValueSource::DefaultValue);
        let value = match value {
            toml::Value::String(s) => s.clone(),
            toml::Value::Integer(i) => i.to_string(),
            toml::Value::Float(f) => f.to_string(),
            toml::Value::Boolean(b) if !arg.get_action().takes_values() => {
                if *b && !by_others {
                    out.push(format!("--{key}").into());
                }
                continue;
            }
            _ => return Err(Error::invalid(format!("the value of {key:?} is not text, a number or true")).at(file.display())),
        };
        if !by_others {
            out.push(format!("--{key}={value}").into());
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Command, Daemon};

    fn daemon(words: &str, file: Option<&str>) -> Result<Daemon, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.toml");
        let mut line: Vec<OsString> = words.split(' ').map(Into::into).collect();
        if let Some(text) = file {
            std::fs::write(&path, text).unwrap();
            line.push(format!("--config={}", path.display()).into());
        }
        match parse(line) {
            Ok(Cli { command: Command::Daemon(d) | Command::CheckConfig(d), .. }) => Ok(d),
            Ok(_) => Err("another command".into()),
            Err(Wrong::Line(e)) => Err(format!("line: {e}")),
            Err(Wrong::File(e)) => Err(format!("file: {e}")),
        }
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file = "cache-dir = \"/from/file\"\ncache-high = 70\ncache-low = 60\nstore = \"file:///s\"\ncache-ttl = \"2h\"\n";
        let d = daemon("sandbox-workspace daemon --cache-low 50", Some(file)).unwrap();
        assert_eq!((d.node.cache_high, d.node.cache_low), (70, 50));
        assert_eq!(d.node.cache_dir, Path::new("/from/file"));
        assert_eq!(d.store.store.as_deref(), Some("file:///s"));
        assert_eq!(d.node.cache_ttl.as_secs(), 7200);
        assert_eq!(d.node.cache_delete_delay.as_secs(), 60);
        assert!(daemon("sandbox-workspace check-config", Some("")).is_ok());
    }

    #[test]
    fn what_is_wrong_in_the_file_is_named_with_the_file() {
        for (text, word) in [
            ("cache-hihg = 1", "cache-hihg"),
            ("config = \"x\"", "no option"),
            ("cache-high = 400", "400"),
            ("cache-dir = [1]", "not text"),
            ("cache-dir", "no TOML"),
        ] {
            let e = daemon("sandbox-workspace daemon", Some(text)).unwrap_err();
            assert!(e.starts_with("file:") && e.contains(word) && e.contains("daemon.toml"), "{text}: {e}");
        }
        assert!(parse("sandbox-workspace daemon --config=/not/there".split(' ').map(Into::into)).is_err());
    }

    #[test]
    fn every_flag_of_the_daemon_has_a_variable_and_none_twice() {
        let command = command();
        let daemon = command.find_subcommand("daemon").unwrap();
        let names: Vec<_> = daemon.get_arguments().filter_map(|a| a.get_env()).collect();
        for wanted in ["HILOOP_CACHE_DIR", "HILOOP_STORE", "HILOOP_CONTROL_SOCKET", "HILOOP_KUBELET_ROOT", "HILOOP_GRACE", "HILOOP_CONFIG"]
        {
            assert_eq!(names.iter().filter(|n| **n == wanted).count(), 1, "{wanted} in {names:?}");
        }
        let mount = command.find_subcommand("mount").unwrap();
        assert!(mount.get_arguments().all(|a| a.get_env().is_none_or(|e| e == "HILOOP_STORE")), "only the daemon takes everything");
    }
}
