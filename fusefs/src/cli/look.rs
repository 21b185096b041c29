//! Looking at a store without mounting: `list`, `lineage`, `diff`, `du`, `export`.

use hiloop_engine::catalog::{LineageEvent, LineageKind, LostWindow, Parent};
use hiloop_engine::diff::{DiffEntry, DiffKind, diff as diff_in};
use hiloop_engine::du::{DuReport, du as du_in};
use hiloop_engine::export::{ExportReport, export as export_in};
use hiloop_engine::look::{self, LineageStep};
use hiloop_env::Env;

use super::args::{Diff, Export, List, Listed, OneSource};
use super::failure::Done;
use super::output::Output;
use super::progress::over_store;
use super::size::show_size;
use super::store::{self, Missing};

fn short(root: Option<&str>) -> String {
    root.map_or_else(|| "-".to_owned(), |r| r.chars().take(16).collect())
}

fn when(seconds: u64) -> String {
    humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds)).to_string()
}

fn kind(k: hiloop_engine::catalog::ParentKind) -> &'static str {
    use hiloop_engine::catalog::ParentKind as P;
    match k {
        P::Base => "base",
        P::Snapshot => "snapshot",
        P::Workspace => "workspace",
        P::Tail => "tail",
    }
}

fn parent(p: Option<&Parent>) -> String {
    p.map_or_else(|| "-".to_owned(), |p| format!("{}:{}", kind(p.kind), p.name))
}

pub(super) async fn list(args: List, out: Output, env: &Env) -> Done {
    let context = store::open(&args.store, Missing::Refuse, env).await?;
    match args.what {
        Listed::Bases => {
            let rows = look::list_bases(&context).await?;
            out.rows(&rows, &["NAME", "ROOT", "FILES", "SIZE", "STORED", "DOMAIN", "CREATED"], |b| {
                let size = if b.root.is_some() { show_size(b.bytes_logical) } else { format!("(being published by {})", b.holder) };
                let name = b.name.to_string();
                vec![
                    name,
                    short(b.root.as_deref()),
                    b.files.to_string(),
                    size,
                    show_size(b.bytes_stored),
                    b.domain.to_string(),
                    when(b.created),
                ]
            })?;
        }
        Listed::Workspaces => {
            let rows = look::list_workspaces(&context).await?;
            out.rows(&rows, &["NAME", "ROOT", "EPOCH", "SEQUENCE", "OPEN ON", "PARENT", "CLAIM", "CREATED"], |w| {
                let open = if w.open { w.node.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string) } else { "-".to_owned() };
                let (epoch, sequence) = (w.epoch.to_string(), w.sequence.to_string());
                let claim = w.claim.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
                vec![w.name.to_string(), short(w.root.as_deref()), epoch, sequence, open, parent(w.parent.as_ref()), claim, when(w.created)]
            })?;
        }
        Listed::Snapshots => {
            let rows = look::list_snapshots(&context).await?;
            out.rows(&rows, &["NAME", "WORKSPACE", "ROOT", "EPOCH", "SEQUENCE", "CREATED"], |s| {
                let (name, workspace) = (s.name.to_string(), s.workspace.to_string());
                vec![name, workspace, short(Some(&s.root)), s.epoch.to_string(), s.sequence.to_string(), when(s.created)]
            })?;
        }
    }
    Ok(())
}

pub(super) async fn lineage(args: OneSource, out: Output, env: &Env) -> Done {
    let context = store::open(&args.store, Missing::Refuse, env).await?;
    let steps = look::lineage(&context, &args.source).await?;
    if out.json {
        return Ok(out.rows(&steps, &[], |_| Vec::new())?);
    }
    let text: Vec<String> = steps.iter().map(step_text).collect();
    Ok(out.result(&steps, |_| text.join("\n"))?)
}

fn step_text(s: &LineageStep) -> String {
    let gone = if s.deleted { " (deleted)" } else { "" };
    let mut lines = vec![format!("{}:{}{gone}, epoch {}, sequence {}", kind(s.kind), s.name, s.epoch, s.sequence)];
    lines.extend(s.events.iter().map(|e| format!("  {} epoch {}: {}", when(e.at), e.epoch, event_text(e))));
    lines.join("\n")
}

fn event_text(e: &LineageEvent) -> String {
    match &e.event {
        LineageKind::Opened { lost_window, node } => {
            let lost = match lost_window {
                LostWindow::None => String::new(),
                LostWindow::Possible => "; writes of the opening before may be lost".into(),
                LostWindow::Known { accepted, published } => {
                    format!("; the opening before had accepted {accepted} and published {published}")
                }
            };
            format!("opened on {node}{lost}")
        }
        LineageKind::Snapshot { name, sequence } => format!("snapshot {name} cut at {sequence}"),
        LineageKind::Deleted => "deleted".into(),
    }
}

/// Differences are printed as they are found: there may be more than memory holds.
pub(super) async fn diff(args: Diff, out: Output, env: &Env) -> Done {
    let context = store::open(&args.store, Missing::Refuse, env).await?;
    diff_in(&context, &args.a, &args.b, &mut |entry| out.result(&entry, diff_text)).await?;
    Ok(())
}

fn diff_text(e: &DiffEntry) -> String {
    let path = |p: &[u8]| format!("/{}", String::from_utf8_lossy(p));
    match (e.kind, &e.from) {
        (DiffKind::Added, _) => format!("A {}", path(&e.path)),
        (DiffKind::Removed, _) => format!("D {}", path(&e.path)),
        (DiffKind::Modified, _) => format!("M {}", path(&e.path)),
        (DiffKind::Renamed, from) => format!("R {} -> {}", path(from.as_deref().unwrap_or_default()), path(&e.path)),
    }
}

pub(super) async fn du(args: OneSource, out: Output, env: &Env) -> Done {
    let context = store::open(&args.store, Missing::Refuse, env).await?;
    let report = over_store("du", &context, out, du_in(&context, &args.source)).await?;
    Ok(out.result(&report, |r: &DuReport| {
        format!(
            "{}: {} inodes, {} files, {} logical, {} without holes; stored {}, of that {} shared with its bases and {} of its own",
            r.source,
            r.inodes,
            r.files,
            show_size(r.bytes_logical),
            show_size(r.bytes_allocated),
            show_size(r.bytes_stored),
            show_size(r.bytes_shared),
            show_size(r.bytes_unique)
        )
    })?)
}

pub(super) async fn export(args: Export, out: Output, env: &Env) -> Done {
    let context = store::open(&args.store, Missing::Refuse, env).await?;
    let report = over_store("export", &context, out, export_in(&context, &args.source, &args.directory)).await?;
    for skipped in &report.skipped {
        out.note(&format!("warning: left out: {skipped}"));
    }
    Ok(out.result(&report, |r: &ExportReport| {
        format!("{} is exported to {}: {} names, {}", r.source, args.directory.display(), r.names, show_size(r.bytes))
    })?)
}
