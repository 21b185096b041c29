//! `fork`.

use hiloop_engine::fork::{ForkOptions, ForkResult, fork as fork_in};
use hiloop_env::Env;
use hiloop_types::{Name, NameKind};
use serde::Serialize;

use super::args::{Fork, default_cache_dir};
use super::failure::{Done, Failure, usage};
use super::live::flush_found;
use super::output::Output;
use super::progress::over_store;
use super::store::{self, Missing};
use crate::daemon::find;
use crate::daemon::protocol::Selector;

#[derive(Serialize)]
struct Children {
    children: Vec<ForkResult>,
}

pub(super) async fn fork(args: Fork, out: Output, env: &Env) -> Done {
    let url = store::url(&args.store)?;
    let context = store::open(&args.store, Missing::Refuse, env).await?;
    if args.flush {
        flush_source(&args, &url.to_string(), out, env).await?;
    }
    let names: Vec<String> = args.children.iter().map(Name::to_string).collect();
    let options = ForkOptions { domain: args.domain, quota: args.quota, binding: None };
    let children = over_store("fork", &context, out, fork_in(&context, &args.source, &names, &options)).await?;
    let failed = children.iter().any(|c| c.error.is_some());
    out.result(&Children { children }, |c| {
        let line = |c: &ForkResult| match &c.error {
            None => format!("{} is forked ({} bytes written, {:.1} ms)", c.name, c.bytes_written, c.ms),
            Some(e) => format!("{} is not made: {e}", c.name),
        };
        c.children.iter().map(line).collect::<Vec<_>>().join("\n")
    })?;
    if failed { Err(Failure::Shown) } else { Ok(()) }
}

/// Publishes the source where a daemon of this machine has it mounted. One that is not mounted here has nothing to publish here.
async fn flush_source(args: &Fork, store: &str, out: Output, env: &Env) -> Done {
    let name = match args.source.split_once(':') {
        Some(("workspace", name)) => name,
        Some(_) => return Ok(()),
        None => args.source.as_str(),
    };
    let workspace = usage(Name::new(NameKind::Workspace, name))?;
    let of = Selector { workspace: Some(workspace), store: Some(store.to_owned()), mountpoint: None };
    let daemons = find::candidates(args.daemon.cache_dir.as_deref(), &default_cache_dir());
    for found in find::mounts(&daemons, &of).await? {
        flush_found(&found, out, env).await?;
    }
    Ok(())
}
