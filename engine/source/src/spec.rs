//! What an argument of `publish-base` names.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use hiloop_types::{Error, Result, ResultExt};

/// Where a base's tree comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceSpec {
    /// A directory tree.
    Directory(PathBuf),
    /// A tar file (or a pipe with one), packed or not.
    Tar(PathBuf),
    /// A tar on standard input.
    Stdin,
    /// An OCI image layout directory.
    OciLayout(PathBuf),
}

impl SourceSpec {
    /// Tells what `arg` is: `-` is standard input, a directory that holds `oci-layout` and `index.json` is an image layout, any other
    /// directory a tree, and everything else a tar (whose packing is told by its first bytes).
    ///
    /// # Errors
    /// `NotFound` or `Denied` if the path cannot be looked at; `Invalid` for an empty argument.
    pub fn detect(arg: &str) -> Result<Self> {
        if arg == "-" {
            return Ok(Self::Stdin);
        }
        if arg.is_empty() {
            return Err(Error::invalid("the source is an empty string").hint("name a directory, a tar file, an OCI layout, or - for stdin"));
        }
        let path = PathBuf::from(arg);
        if !fs::metadata(&path).at(path.display())?.is_dir() {
            return Ok(Self::Tar(path));
        }
        let layout = path.join("oci-layout").is_file() && path.join("index.json").is_file();
        Ok(if layout { Self::OciLayout(path) } else { Self::Directory(path) })
    }
}

impl fmt::Display for SourceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) | Self::Tar(path) | Self::OciLayout(path) => write!(f, "{}", path.display()),
            Self::Stdin => f.write_str("standard input"),
        }
    }
}
