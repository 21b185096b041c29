//! What happens to a `file://` store, seen from outside: an open of an object is a read, a rename onto a key is a put
//! (`hiloop-store`'s file backend writes each object beside and renames it).
//!
//! The kernel merges equal events that follow each other directly, so opens of one object by several readers at the same instant may
//! count as one; reads that wait for each other have other events in between and never merge.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use hiloop_types::{Error, Result};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

/// Folders that are read and written for reasons other than the content of a workspace.
const UPKEEP: [&str; 4] = ["probe", "nodes", "leases", ".locks"];

/// One event of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was opened for reading.
    Opened(String),
    /// A reader closed it.
    Closed(String),
    /// It was put.
    Put(String),
}

/// Watches the directory of a store.
pub struct Watch {
    inotify: Inotify,
    root: PathBuf,
    directories: HashMap<WatchDescriptor, String>,
}

impl Watch {
    /// Watches all directories that there are below `root`; new ones from when [`Watch::take`] sees them, which misses what happened in
    /// them before: figures that count puts into new directories compare listings instead.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new(root: &Path) -> Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).map_err(|e| Error::io("inotify", &e.into()))?;
        let mut this = Self { inotify, root: root.to_owned(), directories: HashMap::new() };
        this.add(String::new())?;
        Ok(this)
    }

    fn add(&mut self, key: String) -> Result<()> {
        let path = self.root.join(&key);
        let flags = AddWatchFlags::IN_OPEN | AddWatchFlags::IN_CLOSE_NOWRITE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CREATE;
        let descriptor = self.inotify.add_watch(&path, flags).map_err(|e| Error::io(path.display(), &e.into()))?;
        self.directories.insert(descriptor, key.clone());
        for entry in fs::read_dir(&path).map_err(|e| Error::io(path.display(), &e))? {
            let entry = entry.map_err(|e| Error::io(path.display(), &e))?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if entry.path().is_dir() && !name.starts_with('.') {
                self.add(join(&key, &name))?;
            }
        }
        Ok(())
    }

    /// The events since the last call, in their order.
    ///
    /// # Errors
    /// What the operating system says; `Internal` where events were lost.
    pub fn take(&mut self) -> Result<Vec<Event>> {
        let mut taken = Vec::new();
        loop {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN) => return Ok(taken),
                Err(e) => return Err(Error::io("inotify", &e.into())),
            };
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    return Err(Error::internal("the kernel lost events of the store's directory"));
                }
                let (Some(directory), Some(name)) = (self.directories.get(&event.wd), event.name) else { continue };
                let name = name.to_string_lossy();
                let key = join(directory, &name);
                if event.mask.contains(AddWatchFlags::IN_ISDIR) {
                    // Those with a dot are the store's own: locks and what is being written.
                    if event.mask.contains(AddWatchFlags::IN_CREATE) && !name.starts_with('.') {
                        self.add(key)?;
                    }
                } else if event.mask.contains(AddWatchFlags::IN_OPEN) {
                    taken.push(Event::Opened(key));
                } else if event.mask.contains(AddWatchFlags::IN_CLOSE_NOWRITE) {
                    taken.push(Event::Closed(key));
                } else if event.mask.contains(AddWatchFlags::IN_MOVED_TO) {
                    taken.push(Event::Put(key));
                }
            }
        }
    }
}

fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

fn folder(key: &str) -> &str {
    key.split('/').next().unwrap_or(key)
}

/// Puts by folder.
pub fn puts(events: &[Event]) -> BTreeMap<String, u64> {
    let mut puts = BTreeMap::new();
    for event in events {
        if let Event::Put(key) = event {
            *puts.entry(folder(key).to_owned()).or_default() += 1;
        }
    }
    puts
}

/// The reads that an open of a workspace caused once its head was known.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Reads {
    /// All, by folder.
    pub by_folder: BTreeMap<String, u64>,
    /// Reads that began when no other was under way: at least as many as waited for each other.
    pub rounds: u64,
}

/// Counts the reads after the first one of a head. Reads of heads and of upkeep are not counted.
pub fn reads_after_head(events: &[Event]) -> Reads {
    let mut reads = Reads::default();
    let mut under_way = 0u64;
    let counted = |key: &str| folder(key) != "heads" && !UPKEEP.contains(&folder(key));
    let head = |e: &Event| matches!(e, Event::Opened(key) if folder(key) == "heads");
    for event in events.iter().skip_while(|e| !head(e)) {
        match event {
            Event::Opened(key) if counted(key) => {
                *reads.by_folder.entry(folder(key).to_owned()).or_default() += 1;
                reads.rounds += u64::from(under_way == 0);
                under_way += 1;
            }
            Event::Closed(key) if counted(key) => under_way = under_way.saturating_sub(1),
            _ => {}
        }
    }
    reads
}

/// Sizes of the objects in a folder of a store, by key.
///
/// # Errors
/// What the operating system says, with the path. A folder that does not exist is empty.
pub fn objects(store: &Path, folder: &str) -> Result<BTreeMap<PathBuf, u64>> {
    let dir = store.join(folder);
    if !dir.exists() {
        return Ok(BTreeMap::new());
    }
    Ok(crate::tree::walk(&dir)?.into_iter().filter(|(_, m)| m.is_file()).map(|(p, m)| (p, m.len())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(key: &str) -> Event {
        Event::Opened(key.into())
    }
    fn closed(key: &str) -> Event {
        Event::Closed(key.into())
    }

    #[test]
    fn reads_that_overlap_are_one_round_and_the_head_is_none() {
        let events = [
            opened("packs/0"),
            closed("packs/0"),
            opened("heads/w"),
            closed("heads/w"),
            opened("packs/1"),
            opened("packs/2"),
            closed("packs/1"),
            closed("packs/2"),
            opened("nodes/n"),
            closed("nodes/n"),
            opened("packs/1"),
        ];
        let reads = reads_after_head(&events);
        assert_eq!((reads.by_folder["packs"], reads.rounds), (3, 2));
        assert_eq!(reads.by_folder.len(), 1);
    }

    #[test]
    fn reads_and_puts_of_a_directory_are_seen() {
        let dir = std::env::temp_dir().join(format!("hiloop-bench-watch-{}", std::process::id()));
        fs::create_dir_all(dir.join("heads")).unwrap();
        fs::create_dir_all(dir.join(".tmp")).unwrap();
        let mut watch = Watch::new(&dir).unwrap();
        fs::write(dir.join(".tmp/x"), "x").unwrap();
        fs::rename(dir.join(".tmp/x"), dir.join("heads/w")).unwrap();
        fs::read(dir.join("heads/w")).unwrap();
        let events = watch.take().unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(events, [Event::Put("heads/w".into()), opened("heads/w"), closed("heads/w")]);
        assert_eq!(puts(&events)["heads"], 1);
    }
}
