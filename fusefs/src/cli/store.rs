//! Opening a store for a command that needs no daemon.

use std::path::Path;

use hiloop_engine::context::StoreContext;
use hiloop_env::Env;
use hiloop_store::{Store, StoreOptions, StoreUrl};
use hiloop_types::{Error, Result, ResultExt};

use super::args::StoreArgs;
use super::failure::{Done, Failure, usage};

/// Whether a directory store may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// A command that writes the first object of a store.
    Create,
    /// Any other: a typing error must not make a directory.
    Refuse,
}

/// The URL, checked before any I/O. A refused URL is never printed.
pub(super) fn url(args: &StoreArgs) -> Done<StoreUrl> {
    let text = args
        .store
        .as_deref()
        .filter(|s| !s.is_empty())
        .ok_or_else(|| Failure::Usage(Error::invalid("no store is named").hint("give --store URL, or set HILOOP_STORE")))?;
    let url = usage(StoreUrl::parse(text))?;
    if let Some(file) = &args.ca_file {
        usage(std::fs::metadata(file).at(file.display()).map(drop))?;
    }
    Ok(url)
}

/// Opens the store that the arguments name.
pub(super) async fn open(args: &StoreArgs, missing: Missing, env: &Env) -> Done<StoreContext> {
    let url = url(args)?;
    if missing == Missing::Refuse {
        exists(&url)?;
    }
    let options = StoreOptions { ca_file: args.ca_file.clone(), create_directory: missing == Missing::Create, ..StoreOptions::default() };
    let store = Store::open(&url, options, env.clone()).await?;
    Ok(StoreContext::new(store, env.clone(), holder()))
}

/// Says so where the directory of a `file://` store is not there.
pub(super) fn exists(url: &StoreUrl) -> Result<()> {
    match url.directory() {
        Some(dir) if !Path::new(dir).is_dir() => Err(Error::not_found("there is no store: the directory does not exist")
            .at(url)
            .hint("`publish-base` makes one; check the path")),
        _ => Ok(()),
    }
}

/// Who runs this command, for people who find its leases and intents.
fn holder() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(store: Option<&str>) -> StoreArgs {
        StoreArgs { store: store.map(str::to_owned), ca_file: None }
    }

    #[test]
    fn a_wrong_url_is_usage_and_shows_no_secret() {
        for bad in [None, Some(""), Some("s3://key:hunter2@b"), Some("ftp://x"), Some("s3://b?secret=hunter2"), Some("file://rel")] {
            let Err(Failure::Usage(e)) = url(&args(bad)) else { panic!("{bad:?} was taken") };
            assert!(!e.to_string().contains("hunter2"), "{e}");
        }
        let e = url(&args(Some("s3://b?speed=9"))).unwrap_err();
        let shown = e.error().to_string();
        assert!(shown.contains("speed") && shown.contains("prefix"), "{shown}");
    }

    #[test]
    fn a_missing_directory_is_not_made() {
        let temp = tempfile::tempdir().unwrap();
        let there = StoreUrl::file(temp.path()).unwrap();
        assert!(exists(&there).is_ok());
        let gone = StoreUrl::file(&temp.path().join("typo")).unwrap();
        assert!(exists(&gone).unwrap_err().to_string().contains("typo"));
        assert!(!temp.path().join("typo").exists());
    }
}
