//! Progress of work that takes longer than a second: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hiloop_engine::context::StoreContext;
use hiloop_env::Env;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;

use super::output::{Output, say};
use super::size::show_size;

/// Work that ends sooner shows nothing.
const QUIET: Duration = Duration::from_secs(1);
/// Time between two plain lines.
const LINES: Duration = Duration::from_secs(5);
/// Bars are redrawn this often a second.
const REDRAWS: u8 = 8;

const WITH_TOTAL: &str = "{prefix} {bar:24} {binary_bytes} of {binary_total_bytes}, {msg}, {binary_bytes_per_sec}, {eta} left";
const WITHOUT_TOTAL: &str = "{prefix} {spinner} {binary_bytes}, {msg}, {binary_bytes_per_sec}";
const WORDS: &str = "{prefix} {spinner} {msg}";

/// The progress of one command. Cheap to clone; the last clone clears the bar.
#[derive(Clone)]
pub(super) struct Progress(Arc<Inner>);

struct Inner {
    out: Output,
    env: Env,
    bar: ProgressBar,
    terminal: bool,
    started: Duration,
    shown: Mutex<Option<Duration>>,
    total: AtomicU64,
}

impl Progress {
    /// Starts the clock of `doing`.
    pub(super) fn start(doing: &str, out: Output, env: &Env) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()).with_prefix(doing.to_owned());
        let (terminal, started) = (std::io::stderr().is_terminal(), env.monotonic());
        Self(Arc::new(Inner { out, env: env.clone(), bar, terminal, started, shown: Mutex::new(None), total: AtomicU64::new(0) }))
    }

    /// Says how much there is, once that is known.
    pub(super) fn total(&self, bytes: u64) {
        self.0.total.store(bytes, Ordering::Relaxed);
    }

    /// So many bytes and files are done.
    pub(super) fn done(&self, bytes: u64, files: u64) {
        let total = self.0.total.load(Ordering::Relaxed);
        self.0.bar.set_position(bytes);
        if total >= bytes && total > 0 {
            self.0.bar.set_length(total);
        }
        let style = if total > 0 { WITH_TOTAL } else { WITHOUT_TOTAL };
        self.show(style, format!("{files} files"), |p| {
            let seconds = p.env.monotonic().saturating_sub(p.started).as_secs_f64();
            let of = if total > 0 { format!(" of {}", show_size(total)) } else { String::new() };
            let rate = bytes as f64 / seconds.max(0.001);
            let left = if total > bytes && rate > 0.0 { format!(", {:.0} s left", (total - bytes) as f64 / rate) } else { String::new() };
            format!("{}{of}, {files} files, {}/s{left}", show_size(bytes), show_size(rate as u64))
        });
    }

    /// What is being done now, in words.
    pub(super) fn words(&self, text: &str) {
        self.show(WORDS, text.to_owned(), |_| text.to_owned());
    }

    fn show(&self, style: &str, message: String, line: impl FnOnce(&Inner) -> String) {
        let p = &self.0;
        let now = p.env.monotonic();
        if now.saturating_sub(p.started) < QUIET {
            return;
        }
        let mut shown = p.shown.lock();
        if p.terminal {
            if shown.is_none() {
                p.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(REDRAWS));
            }
            if let Ok(style) = ProgressStyle::with_template(style) {
                p.bar.set_style(style);
            }
            p.bar.set_message(message);
            p.bar.tick();
        } else if !p.out.json && shown.is_none_or(|at| now.saturating_sub(at) >= LINES) {
            say(&format!("{}: {}", p.bar.prefix(), line(p)));
        } else {
            return;
        }
        *shown = Some(now);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Waits for `work` over a store and shows what the store gave so far.
pub(super) async fn over_store<T>(doing: &str, context: &StoreContext, out: Output, work: impl Future<Output = T>) -> T {
    let progress = Progress::start(doing, out, context.env());
    let mut work = std::pin::pin!(work);
    let mut tick = tokio::time::interval(QUIET / 4);
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = tick.tick() => {
                let s = context.store().stats();
                progress.words(&format!("{} requests, {} read", s.requests(), show_size(s.bytes_in)));
            }
        }
    }
}

/// What a daemon says while it works.
pub(super) fn of_daemon(progress: &Progress) -> impl FnMut(crate::daemon::protocol::Progress) + Send + 'static {
    let progress = progress.clone();
    move |said| {
        let left = said.left_bytes.filter(|b| *b > 0).map(|b| format!(", {} left", show_size(b))).unwrap_or_default();
        progress.words(&format!("{}{left}", said.doing));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_hold() {
        for t in [WITH_TOTAL, WITHOUT_TOTAL, WORDS] {
            ProgressStyle::with_template(t).unwrap();
        }
    }

    #[test]
    fn short_work_shows_nothing_and_lines_keep_their_distance() {
        let (env, clock) = Env::simulated(1);
        let p = Progress::start("publishing", Output { json: true }, &env);
        p.done(1, 1);
        assert!(p.0.shown.lock().is_none());
        clock.advance(QUIET);
        let p = Progress(Arc::new(Inner {
            out: Output { json: false },
            env: env.clone(),
            bar: ProgressBar::hidden(),
            terminal: false,
            started: Duration::ZERO,
            shown: Mutex::new(None),
            total: AtomicU64::new(0),
        }));
        p.total(10);
        p.done(5, 1);
        let first = *p.0.shown.lock();
        assert_eq!(first, Some(QUIET));
        clock.advance(LINES / 2);
        p.done(6, 1);
        assert_eq!(*p.0.shown.lock(), first);
        clock.advance(LINES);
        p.done(7, 1);
        assert!(*p.0.shown.lock() > first);
    }
}
