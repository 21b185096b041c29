//! `publish-base`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hiloop_engine::base::{BaseProgress, BaseReport, BaseRequest, publish_base};
use hiloop_env::Env;
use hiloop_source::SourceSpec;
use hiloop_types::Error;

use super::args::PublishBase;
use super::failure::Done;
use super::output::Output;
use super::progress::Progress;
use super::size::show_size;
use super::store::{self, Missing};

pub(super) async fn publish(args: PublishBase, out: Output, env: &Env) -> Done {
    store::url(&args.store)?;
    let source = SourceSpec::detect(&args.source)?;
    let context = store::open(&args.store, Missing::Create, env).await?;
    let mut request = BaseRequest::new(args.build_id.as_str(), source.clone())?;
    request.domain = args.domain;
    if args.take_over {
        request.patience = Duration::ZERO;
    }
    let progress = Progress::start("publishing", out, env);
    let measuring = Arc::new(AtomicBool::new(true));
    if let SourceSpec::Directory(dir) = &source {
        let (dir, progress, measuring) = (dir.clone(), progress.clone(), measuring.clone());
        // Only the bar waits for this; the publish does not.
        tokio::task::spawn_blocking(move || {
            if let Some(total) = measure(&dir, &measuring) {
                progress.total(total);
            }
        });
    }
    let shown = progress.clone();
    let tell = Arc::new(move |p| match p {
        BaseProgress::Watching => shown.words("another publish of this build id was not finished; watching whether its publisher lives"),
        BaseProgress::Reading { entries, bytes } => shown.done(bytes, entries),
        BaseProgress::Building => shown.words("building the tree"),
    });
    let published = publish_base(&context, request, tell).await;
    measuring.store(false, Ordering::Relaxed);
    drop(progress);
    let report = published?;
    if !out.json {
        return Ok(out.result(&(), |()| text(&report))?);
    }
    let mut shown = serde_json::to_value(&report).map_err(|e| Error::internal(format!("cannot encode the report: {e}")))?;
    // The tree by its identity, as everywhere else; not by the place of its root node.
    shown["root"] = report.root.node.id.to_string().into();
    Ok(out.result(&shown, |_| String::new())?)
}

fn text(r: &BaseReport) -> String {
    let what = if r.existed { "exists with this content; nothing was uploaded" } else { "published" };
    format!(
        "base {} {what}: {} files, {}, stored {} in {} packs ({} chunks new, {} reused), {:.1} s",
        r.build_id,
        r.files,
        show_size(r.bytes_logical),
        show_size(r.bytes_stored),
        r.packs,
        r.chunks_new,
        r.chunks_reused,
        r.seconds
    )
}

/// Bytes of the files below `dir`; `None` where it cannot be told or is not wanted any more. What cannot be read the publish will name.
fn measure(dir: &Path, wanted: &AtomicBool) -> Option<u64> {
    let mut total = 0;
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).ok()?.flatten() {
            let meta = entry.metadata().ok()?;
            if meta.is_dir() {
                open.push(entry.path());
            } else if meta.is_file() {
                total += meta.len();
            }
        }
        if !wanted.load(Ordering::Relaxed) {
            return None;
        }
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_measured_until_nobody_cares() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("d")).unwrap();
        std::fs::write(temp.path().join("d/a"), [0; 10]).unwrap();
        std::fs::write(temp.path().join("b"), [0; 5]).unwrap();
        std::os::unix::fs::symlink("/", temp.path().join("loop")).unwrap();
        assert_eq!(measure(temp.path(), &AtomicBool::new(true)), Some(15));
        assert_eq!(measure(temp.path(), &AtomicBool::new(false)), None);
    }
}
