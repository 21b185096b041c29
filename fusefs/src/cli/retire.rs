//! `delete`, `gc`, `fsck`.

use futures::{StreamExt, stream};
use hiloop_engine::catalog::DeletedKind;
use hiloop_engine::delete::{DeleteReport, delete as delete_in};
use hiloop_engine::fsck::{FsckFault, FsckOptions, FsckReport, fsck as fsck_in};
use hiloop_engine::gc::{GcOptions, GcReport, gc as gc_in};
use hiloop_env::Env;
use hiloop_types::{Error, Nonce, limits};

use super::args::{Delete, DeletedArg, Fsck, Gc};
use super::failure::{Done, Failure};
use super::output::Output;
use super::progress::over_store;
use super::size::show_size;
use super::store::{self, Missing};

pub(super) async fn delete(args: Delete, out: Output, env: &Env) -> Done {
    let context = store::open(&args.store, Missing::Refuse, env).await?;
    let kind = match args.kind {
        DeletedArg::Snapshot => DeletedKind::Snapshot,
        DeletedArg::Workspace => DeletedKind::Workspace,
        DeletedArg::Base => DeletedKind::Base,
    };
    let mut failed = Ok(());
    let deletes = args.names.iter().map(|name| delete_in(&context, kind, name, args.force));
    // Told in the order in which they were named, whichever ends first.
    let mut deletes = std::pin::pin!(stream::iter(deletes).buffered(limits::DELETES));
    while let Some(deleted) = deletes.next().await {
        match deleted {
            Ok(report) => out.result(&report, |r: &DeleteReport| format!("{} is deleted; `gc` frees its content", r.name))?,
            // The others are deleted all the same; the first failure is the one to show last.
            Err(e) if failed.is_ok() => failed = Err(Failure::Failed(e)),
            Err(e) => out.failure(&Failure::Failed(e)),
        }
    }
    failed
}

pub(super) async fn gc(args: Gc, out: Output, env: &Env) -> Done {
    let drop = match &args.drop {
        None => None,
        Some(text) => Some(Nonce::from_hex(text).ok_or_else(|| {
            Failure::Usage(
                Error::invalid(format!("{text:?} is no nonce"))
                    .hint("`gc --dry-run` lists what may be dropped, as sixteen hexadecimal digits"),
            )
        })?),
    };
    let context = store::open(&args.store, Missing::Refuse, env).await?;
    let options = GcOptions { dry_run: args.dry_run, grace: args.grace, drop };
    let report = over_store("gc", &context, out, gc_in(&context, options)).await?;
    Ok(out.result(&report, gc_text)?)
}

fn gc_text(r: &GcReport) -> String {
    let would = if r.dry_run { "would delete" } else { "deleted" };
    let mut lines = vec![format!(
        "{would} {} packs ({}); kept {} packs ({}), {} of them protected; rewrote {} packs",
        r.packs_deleted,
        show_size(r.bytes_freed),
        r.packs_kept,
        show_size(r.bytes_kept),
        r.packs_protected,
        r.repacked
    )];
    lines.extend(r.held.iter().map(|h| {
        let id = h.nonce.map(|n| n.to_string()).or_else(|| h.name.clone()).unwrap_or_default();
        format!("held by {} {id} of {}, {} s old", h.what, h.holder, h.age)
    }));
    lines.extend(r.damaged.iter().map(|d| format!("damaged: {d}; see `fsck --deep`")));
    lines.join("\n")
}

pub(super) async fn fsck(args: Fsck, out: Output, env: &Env) -> Done {
    let context = store::open(&args.store, Missing::Refuse, env).await?;
    let options = FsckOptions { deep: args.deep, source: args.source };
    let report = over_store("fsck", &context, out, fsck_in(&context, &options)).await?;
    out.result(&report, fsck_text)?;
    let clean = report.missing_total == 0 && report.corrupt_total == 0 && report.structure.is_empty();
    if clean { Ok(()) } else { Err(Failure::Shown) }
}

fn fsck_text(r: &FsckReport) -> String {
    let mut lines = vec![format!(
        "checked {} trees: {} nodes, {} chunks, {} packs{}; {} missing, {} corrupt, {} broken rules",
        r.roots,
        r.nodes,
        r.chunks,
        r.packs,
        if r.bytes_read > 0 { format!(" ({} read)", show_size(r.bytes_read)) } else { String::new() },
        r.missing_total,
        r.corrupt_total,
        r.structure.len()
    )];
    let fault = |word: &str, f: &FsckFault| {
        let inode = f.inode.map(|i| format!(", inode {i}")).unwrap_or_default();
        format!("{word} {} {} in pack {} of {}{inode}: {}", f.what, f.id, f.pack, f.source, f.why)
    };
    lines.extend(r.missing.iter().map(|f| fault("missing", f)));
    lines.extend(r.corrupt.iter().map(|f| fault("corrupt", f)));
    lines.extend(r.structure.iter().map(|f| {
        let inode = f.inode.map(|i| format!(", inode {i}")).unwrap_or_default();
        format!("broken rule in {}{inode}: {}", f.source, f.why)
    }));
    lines.join("\n")
}
