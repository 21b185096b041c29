//! The figures of the workspace engine on a small and a large tree: fork, cold open, memory, cached stat, puts.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use hiloop_env::Env;
use hiloop_types::{Error, Result};
use serde_json::{Value, json};

use super::Context;
use crate::figure::{Figure, Verdict};
use crate::mounts::Mounted;
use crate::run::{Tool, anonymous, number, timed};
use crate::sample::Spread;
use crate::tree::{make_directory, tiny, tiny_content, tiny_path, walk};
use crate::watch::{Event, Watch, objects, puts, reads_after_head};

/// Files of the large tree.
const FILES: u32 = 100_000;
/// Children of one fork call.
const CHILDREN: usize = 20;
/// Pairs of fork calls that are compared.
const FORK_PAIRS: usize = 8;
/// Bytes that a child may cost.
const CHILD_BYTES: u64 = 8 << 10;
/// Sequential reads that a cold open may take after the head's.
const COLD_READS: u64 = 3;
/// New files, in directories of [`IN_ONE_DIRECTORY`].
const NEW_FILES: u32 = 10_000;
const NEW_FILE_BYTES: usize = 1024;
const IN_ONE_DIRECTORY: u32 = 1000;
/// Caches of a daemon by default (chunks, nodes, RocksDB), and what it may hold beside them.
const CACHES: u64 = (64 + 32 + 32) << 20;
const OVERHEAD: u64 = 64 << 20;

struct Bench<'a> {
    tool: Tool,
    store: PathBuf,
    env: &'a Env,
}

/// Takes all figures.
///
/// # Errors
/// Where a step fails or content is wrong; a missed target is none.
pub fn run(context: &mut Context<'_>) -> Result<Vec<Figure>> {
    let dir = context.dir.to_owned();
    let store = dir.join("store");
    make_directory(&store)?;
    let tool = Tool { program: context.programs.ours.clone(), store: format!("file://{}", store.display()), dir, vars: Vec::new() };
    let env = context.env;
    let bench = Bench { tool, store, env };
    let large = FILES / IN_ONE_DIRECTORY;
    let mut figures = Vec::new();

    context.phase("engine: publishing two trees")?;
    bench.publish("small", 10, 100)?;
    let seconds = bench.publish("large", large, IN_ONE_DIRECTORY)?;
    let rate = f64::from(large * IN_ONE_DIRECTORY) / seconds;
    let measured = format!("{seconds:.1} s, {rate:.0} files/s");
    figures.push(Figure::new(format!("publish a base of {} files", FILES), "-", measured, Verdict::Info, json!({ "seconds": seconds })));
    context.phase("engine: fork")?;
    figures.extend(bench.fork(FILES)?);
    context.phase("engine: cold open")?;
    let (figure, mounted) = bench.cold_open("small", "1,000 files", 9, 99, 10)?;
    figures.push(figure);
    mounted.unmount()?;
    let (figure, mounted) = bench.cold_open("large", &format!("{} files", FILES), large / 2, 421, large)?;
    figures.push(figure);
    context.phase("engine: memory and cached stat")?;
    figures.extend(bench.memory(&mounted, large)?);
    figures.push(bench.cached_stat(&mounted)?);
    context.phase("engine: new files")?;
    figures.push(bench.new_files(&mounted)?);
    let (seconds, ()) = timed(env, || mounted.unmount())?;
    let shown = format!("{seconds:.1} s");
    figures.push(Figure::new("unmount after all that, daemon gone", "-", shown, Verdict::Info, json!({ "seconds": seconds })));
    Ok(figures)
}

impl Bench<'_> {
    /// Publishes a tree as a base and makes two workspaces of it: one to fork, one to open. Returns the seconds of publishing.
    fn publish(&self, name: &str, dirs: u32, files: u32) -> Result<f64> {
        let tree = self.tool.dir.join(name);
        tiny(&tree, dirs, files)?;
        let (seconds, answer) =
            timed(self.env, || self.tool.json(&["publish-base".as_ref(), "--build-id".as_ref(), name.as_ref(), tree.as_os_str()]))?;
        if number(&answer, "/chunks_new")? + number(&answer, "/chunks_reused")? != f64::from(dirs * files) {
            return Err(Error::corrupt(format!("{} files were published: {answer}", dirs * files)));
        }
        fs::remove_dir_all(&tree).map_err(|e| Error::io(tree.display(), &e))?;
        self.tool.json(&["fork", &format!("base:{name}"), name, &format!("{name}-source")])?;
        Ok(seconds)
    }

    fn fork(&self, files: u32) -> Result<Vec<Figure>> {
        let mut watch = Watch::new(&self.store)?;
        let mut seconds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        let (mut bytes, mut said) = (0, 0.0f64);
        let mut calls = 0u64;
        for pair in 0..FORK_PAIRS {
            let order = if pair.is_multiple_of(2) { ["small", "large"] } else { ["large", "small"] };
            for source in order {
                let names: Vec<String> = (0..CHILDREN).map(|c| format!("child-{source}-{pair}-{c}")).collect();
                let mut args = vec!["fork".to_owned(), format!("workspace:{source}-source")];
                args.extend(names.iter().cloned());
                let before = objects(&self.store, "")?;
                let (took, answer) = timed(self.env, || self.tool.json(&args))?;
                let after = objects(&self.store, "")?;
                let new: Vec<_> = after.iter().filter(|(path, _)| !before.contains_key(*path)).collect();
                let made = names.iter().all(|n| after.contains_key(&self.store.join("heads").join(n)));
                // Locks are the store's own files, one for each stripe of keys, and no objects.
                let objects: Vec<u64> =
                    new.iter().filter(|(p, _)| !p.starts_with(self.store.join(".locks"))).map(|(_, size)| **size).collect();
                if !made || objects.len() != CHILDREN {
                    return Err(Error::corrupt(format!("{CHILDREN} children came to {} objects: {answer}", objects.len())));
                }
                bytes = objects.into_iter().chain([bytes]).max().unwrap_or(0);
                let children = answer.get("children").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                said = children.iter().map(|c| number(c, "/bytes_written")).try_fold(said, |max, n| n.map(|n| n.max(max)))?;
                seconds.entry(source).or_default().push(took);
                calls += 1;
            }
        }
        let puts = puts(&watch.take()?);
        let all = puts.values().sum::<u64>();
        let (heads, intents) = (puts.get("heads").copied().unwrap_or(0), puts.get("intents").copied().unwrap_or(0));
        let per_child = heads as f64 / (calls * CHILDREN as u64) as f64;
        let per_call = intents as f64 / calls as f64;
        let within = heads == calls * CHILDREN as u64 && intents == calls && all == heads + intents;
        let ratio = Spread::of_ratios(&seconds["large"], &seconds["small"]);
        let ms = |name: &str| Spread::of(&seconds[name]).median * 1e3;
        Ok(vec![
            Figure::new(
                format!("fork of {files} files: puts"),
                "1 a child, 1 intent a call",
                format!("{per_child} a child, {per_call} a call, {} others", all - heads - intents),
                Verdict::of(within),
                json!({ "calls": calls, "children": calls * CHILDREN as u64, "puts": puts }),
            ),
            Figure::new(
                format!("fork of {files} files: bytes"),
                format!("at most {CHILD_BYTES} a child"),
                format!("{bytes} a child"),
                Verdict::of(bytes <= CHILD_BYTES && said <= CHILD_BYTES as f64),
                json!({ "largest_object": bytes, "largest_reported": said }),
            ),
            Figure::new(
                format!("fork of {files} files: time"),
                "at most 1.2x that of 1,000",
                format!("{ratio}x ({:.1} ms; {:.1} ms for {CHILDREN} children)", ms("large"), ms("small")),
                Verdict::of(ratio.median <= 1.2),
                json!({ "ratio": ratio, "seconds": seconds }),
            ),
        ])
    }

    /// A mount with an empty cache, `ls` of its root, one small file; leaves it mounted.
    fn cold_open(&self, workspace: &str, size: &str, dir: u32, file: u32, dirs: u32) -> Result<(Figure, Mounted)> {
        let mut watch = Watch::new(&self.store)?;
        let (took, (mounted, events)) = timed(self.env, || {
            let mounted = Mounted::fresh(&self.tool, workspace)?;
            let at = &mounted.at;
            let mut events = watch.take()?;
            let listed = fs::read_dir(at).map_err(|e| Error::io(at.display(), &e))?.count();
            events.extend(watch.take()?);
            let path = at.join(tiny_path(dir, file));
            let content = fs::read_to_string(&path).map_err(|e| Error::io(path.display(), &e))?;
            events.extend(watch.take()?);
            if listed != dirs as usize || content != tiny_content(dir, file) {
                return Err(Error::corrupt(format!("{listed} directories, the file holds {content:?}")).at(path.display()));
            }
            Ok((mounted, events))
        })?;
        let reads = reads_after_head(&events);
        // Files are read in less time than a thread takes to wake, so reads side by side look like one after another from outside: what
        // waited for each other, the daemon knows. Reads of other folders than packs were beside these, or stand in their number.
        let rounds = number(&mounted.status()?, "/hydration/rounds")? as u64;
        let order: Vec<&String> = events.iter().filter_map(|e| if let Event::Opened(key) = e { Some(key) } else { None }).collect();
        let folders: Vec<String> = reads.by_folder.iter().map(|(folder, n)| format!("{n} of {folder}")).collect();
        let figure = Figure::new(
            format!("cold open, ls, one file; {size}"),
            format!("at most {COLD_READS} sequential reads"),
            format!("{rounds} ({}; {} as seen from outside), {:.0} ms", folders.join(", "), reads.rounds, took * 1e3),
            Verdict::of(rounds <= COLD_READS),
            json!({ "rounds": rounds, "reads": reads, "order": order, "seconds": took }),
        );
        Ok((figure, mounted))
    }

    fn memory(&self, mounted: &Mounted, dirs: u32) -> Result<Vec<Figure>> {
        let held = |status: &Value| -> Result<u64> {
            Ok((number(status, "/residency/memory_nodes_bytes")? + number(status, "/residency/memory_chunks_bytes")?) as u64)
        };
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (idle, in_caches) = (anonymous(mounted.pid)?, held(&mounted.status()?)?);
        let (seconds, found) = timed(self.env, || walk(&mounted.at))?;
        let files = found.iter().filter(|(_, m)| m.is_file()).count();
        if files != (dirs * IN_ONE_DIRECTORY) as usize {
            return Err(Error::corrupt(format!("the walk found {files} files")).at(mounted.at.display()));
        }
        let (walked, in_caches_then) = (anonymous(mounted.pid)?, held(&mounted.status()?)?);
        Ok(vec![
            Figure::new(
                "anonymous memory, idle mount",
                format!("under {:.0} MiB over what caches hold", mib(OVERHEAD)),
                format!("{:.0} MiB, {:.0} of it in caches", mib(idle), mib(in_caches)),
                Verdict::of(idle < OVERHEAD + in_caches),
                json!({ "anonymous": idle, "in_caches": in_caches, "configured_caches": CACHES }),
            ),
            Figure::new(
                format!("anonymous memory after a walk of {files} files"),
                format!("under {:.0} MiB", mib(CACHES + OVERHEAD)),
                format!("{:.0} MiB, {:.0} of it in caches; walk {seconds:.1} s", mib(walked), mib(in_caches_then)),
                Verdict::of(walked < CACHES + OVERHEAD),
                json!({ "anonymous": walked, "in_caches": in_caches_then, "walk_seconds": seconds }),
            ),
        ])
    }

    /// Stats files that were statted before.
    fn cached_stat(&self, mounted: &Mounted) -> Result<Figure> {
        let count = 10 * IN_ONE_DIRECTORY;
        let paths: Vec<PathBuf> = (0..count).map(|n| mounted.at.join(tiny_path(n / IN_ONE_DIRECTORY, n % IN_ONE_DIRECTORY))).collect();
        let pass = || {
            paths.iter().try_for_each(|path| {
                let length = fs::symlink_metadata(path).map_err(|e| Error::io(path.display(), &e))?.len();
                if length > 0 { Ok(()) } else { Err(Error::corrupt("an empty file").at(path.display())) }
            })
        };
        pass()?;
        let requests = || -> Result<BTreeMap<String, u64>> {
            let status = mounted.status()?;
            let all = status.pointer("/fuse/requests").and_then(Value::as_object).cloned().unwrap_or_default();
            Ok(all.into_iter().map(|(op, n)| (op, n.as_u64().unwrap_or(0))).collect())
        };
        let before = requests()?;
        if before.values().sum::<u64>() == 0 {
            return Err(Error::internal("the daemon counted no FUSE requests at all"));
        }
        let (seconds, ()) = timed(self.env, pass)?;
        let after = requests()?;
        let more: BTreeMap<&String, u64> =
            after.iter().map(|(op, n)| (op, n - before.get(op).unwrap_or(&0))).filter(|(_, n)| *n > 0).collect();
        let total = more.values().sum::<u64>();
        let ops: Vec<String> = more.iter().map(|(op, n)| format!(" {n} {op}")).collect();
        Ok(Figure::new(
            format!("cached stat of {count} files"),
            "0 FUSE requests",
            format!("{total}{}, {:.2} us each", ops.concat(), seconds * 1e6 / f64::from(count)),
            Verdict::of(total == 0),
            json!({ "requests": more, "seconds": seconds }),
        ))
    }

    fn new_files(&self, mounted: &Mounted) -> Result<Figure> {
        // Bytes that no compressor and no dedup makes small: the figure is about puts per byte.
        let content = |n: u32| -> Vec<u8> {
            let mut x = u64::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let word = || {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                x.to_le_bytes()
            };
            std::iter::repeat_with(word).take(NEW_FILE_BYTES / 8).flatten().collect()
        };
        let path = |n: u32| mounted.at.join("new").join(tiny_path(n / IN_ONE_DIRECTORY, n % IN_ONE_DIRECTORY));
        let before = objects(&self.store, "packs")?;
        let mut watch = Watch::new(&self.store)?;
        let (seconds, written) = timed(self.env, || {
            let (written, ()) = timed(self.env, || {
                for n in 0..NEW_FILES {
                    let path = path(n);
                    if n.is_multiple_of(IN_ONE_DIRECTORY) {
                        make_directory(path.parent().unwrap_or(&path))?;
                    }
                    fs::write(&path, content(n)).map_err(|e| Error::io(path.display(), &e))?;
                }
                Ok(())
            })?;
            mounted.flush()?;
            Ok(written)
        })?;
        let other = puts(&watch.take()?);
        let after = objects(&self.store, "packs")?;
        let new: Vec<u64> = after.iter().filter(|(path, _)| !before.contains_key(*path)).map(|(_, size)| *size).collect();
        for n in 0..NEW_FILES {
            let path = path(n);
            if fs::read(&path).map_err(|e| Error::io(path.display(), &e))? != content(n) {
                return Err(Error::corrupt("a new file holds something else").at(path.display()));
            }
        }
        let packs = new.len() as u64;
        let mib = new.iter().sum::<u64>() as f64 / f64::from(1 << 20);
        let heads = other.get("heads").copied().unwrap_or(0);
        // A second or MiB that has begun counts: less than one put there is not.
        let allowed = mib.ceil().max(seconds.ceil());
        Ok(Figure::new(
            format!("{NEW_FILES} new files of {NEW_FILE_BYTES} bytes"),
            "at most 1 put per MiB or second",
            format!("{packs} packs + {heads} heads for {mib:.1} MiB in {seconds:.1} s (written in {written:.1} s)"),
            Verdict::of((packs + heads) as f64 <= allowed),
            json!({ "packs": packs, "pack_bytes": new, "puts": other, "seconds": seconds, "write_seconds": written, "flush_seconds": seconds - written }),
        ))
    }
}
