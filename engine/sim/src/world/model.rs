//! What is known of every workspace, and what therefore must be found: the promises of `protocols.md` 1, in the words of a caller.
//!
//! An opening's *history* is the list of trees that its accepted operations made. Whatever is found later, after a restart, a take-over, in a
//! fork or a snapshot, must be one of them, and not one before what was answered as durable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hiloop_engine::catalog::LostWindow;

use super::tree::{Op, Tree};

/// Unsynced work that a power cut may take: an interval of the group commit, and what the commit itself takes.
const COMMITTED_WITHIN: Duration = Duration::from_millis(1100);

/// A tree after an accepted operation.
pub struct Point {
    /// Number of its record; 0 for the tree that an opening started with.
    pub seqno: u64,
    /// When it was accepted.
    pub at: Duration,
    /// The tree.
    pub tree: Arc<Tree>,
}

/// One opening for write.
pub struct History {
    /// The workspace.
    pub workspace: String,
    /// Its epoch.
    pub epoch: u64,
    /// The node.
    pub node: usize,
    /// Trees, oldest first; the first is what it started with.
    pub points: Vec<Point>,
    /// Up to here it was answered as on the node's disk.
    pub synced: usize,
    /// Up to here it was answered as published.
    pub published: usize,
    /// When the power was cut, or a flush failed: what was not flushed may be gone since.
    pub torn: Option<Duration>,
    /// What the next opening started with, as the last point that is equal to it: nothing above was published.
    pub fenced: Option<usize>,
    /// As the first such point: nothing below is left.
    pub fenced_first: usize,
    /// Somebody began to give it back; the head may say so though nobody lived to be told.
    pub releasing: bool,
    /// It was given back with nothing left.
    pub released: bool,
    /// It was detached with nothing left, given back or not.
    pub closed: bool,
    /// Its workspace was deleted: nothing is promised any more.
    pub lost: bool,
}

impl History {
    /// The tree after everything that was accepted.
    pub fn last(&self) -> &Arc<Tree> {
        &self.points[self.points.len() - 1].tree
    }
    /// The last point up to a record.
    pub fn index_of(&self, seqno: u64) -> usize {
        self.points.iter().rposition(|p| p.seqno <= seqno).unwrap_or(0)
    }
    /// The first point that may be the last one on the node's disk.
    fn floor(&self) -> usize {
        let Some(torn) = self.torn else { return self.points.len() - 1 };
        let timely = self.points.iter().rposition(|p| p.at + COMMITTED_WITHIN < torn).unwrap_or(0);
        self.synced.max(self.published).max(timely).max(self.fenced_first)
    }
    /// The last point from `floor` on that is `tree`.
    fn find(&self, tree: &Tree, floor: usize, what: &str) -> Result<usize, String> {
        let found = (floor..self.points.len()).rev().find(|i| *self.points[*i].tree == *tree);
        found.ok_or_else(|| {
            let earlier = self.points.iter().rposition(|p| *p.tree == *tree);
            let how = match earlier {
                Some(i) => format!("it is point {i}, which is older"),
                None => "it is none of its trees".to_owned(),
            };
            format!(
                "{what} of {} epoch {} must be one of points {floor}..={} (synced {}, published {}, fenced {:?}), and {how}: {tree:?}, last {:?}",
                self.workspace,
                self.epoch,
                self.points.len() - 1,
                self.synced,
                self.published,
                self.fenced,
                self.last(),
            )
        })
    }
}

/// A workspace by name.
#[derive(Default)]
pub struct Known {
    /// What its first opening may find.
    pub start: Vec<Arc<Tree>>,
    /// Nothing is known any more: a deletion or creation had no clear end.
    pub lost: bool,
}

/// Where a snapshot was cut.
#[derive(Clone)]
pub enum Cut {
    /// Exactly here.
    At(Arc<Tree>),
    /// Nobody was told: in this session, at this point or later.
    From(u64, usize),
}

/// A snapshot by name.
pub struct Snapshot {
    /// What it holds.
    pub cut: Cut,
    /// It was answered as replicated: it must be there.
    pub replicated: bool,
    /// It was deleted, or that was tried.
    pub deleted: bool,
}

/// All that is known.
#[derive(Default)]
pub struct Model {
    /// Openings by session.
    pub openings: BTreeMap<u64, History>,
    /// Workspaces that exist.
    pub workspaces: BTreeMap<String, Known>,
    /// Snapshots.
    pub snapshots: BTreeMap<String, Snapshot>,
    /// Names of workspaces that were deleted, to be used again.
    pub deleted: Vec<String>,
}

/// An attach as it was answered.
pub struct Attached<'a> {
    /// The workspace.
    pub workspace: &'a str,
    /// Epoch of the opening.
    pub epoch: u64,
    /// Session of the opening.
    pub session: u64,
    /// The node.
    pub node: usize,
    /// What is said of the opening before.
    pub lost_window: LostWindow,
}

impl Model {
    /// Openings of a workspace by epoch.
    fn epochs(&self, workspace: &str) -> BTreeMap<u64, u64> {
        self.openings.iter().filter(|(_, h)| h.workspace == workspace && !h.lost).map(|(s, h)| (h.epoch, *s)).collect()
    }

    /// An attach found `tree`.
    ///
    /// # Errors
    /// The promise that this breaks.
    pub fn attached(&mut self, a: &Attached<'_>, tree: Arc<Tree>, now: Duration) -> Result<(), String> {
        if self.workspaces.get(a.workspace).is_none_or(|w| w.lost) {
            return Ok(());
        }
        if let Some(h) = self.openings.get_mut(&a.session) {
            let at = h.find(&tree, h.floor(), "what its own node found again")?;
            h.points.truncate(at + 1);
            if h.torn.take().is_some() {
                h.synced = at;
            }
            h.published = h.published.min(at);
            return Ok(());
        }
        let epochs = self.epochs(a.workspace);
        if let Some((_, before)) = epochs.range(..a.epoch).next_back() {
            let h = self.openings.get_mut(before).ok_or("an opening without history")?;
            let complete = h.released || a.lost_window == LostWindow::None;
            let floor = if complete { h.points.len() - 1 } else { h.published };
            let at = h.find(&tree, floor, if complete { "what a clean hand-over left" } else { "what a take-over found" })?;
            h.fenced = Some(h.fenced.map_or(at, |f| f.min(at)));
            // Trees come back: a file that is made and removed.
            h.fenced_first = (floor..=at).find(|i| *h.points[*i].tree == *tree).unwrap_or(at);
            let given_back = h.closed || h.releasing && a.lost_window == LostWindow::None;
            let own = h.node == a.node && h.epoch + 1 == a.epoch && !given_back;
            if own && h.torn != Some(Duration::ZERO) {
                return Err(format!(
                    "epoch {} of {} was not taken up again by its own node, which opened epoch {}",
                    h.epoch, a.workspace, a.epoch
                ));
            }
        } else if let Some(known) = self.workspaces.get(a.workspace)
            && !known.start.iter().any(|t| **t == *tree)
        {
            return Err(format!("{} starts with {tree:?}, which is none of {:?}", a.workspace, known.start));
        }
        let mut fenced = None;
        if let Some((_, after)) = epochs.range(a.epoch..).next()
            && let Some(h) = self.openings.get(after)
        {
            // A later opening was told first. Nothing was written here in between.
            if *h.points[0].tree != *tree {
                return Err(format!("epochs {} and {} of {} start differently with nothing between", a.epoch, h.epoch, a.workspace));
            }
            fenced = Some(0);
        }
        let history = History {
            workspace: a.workspace.to_owned(),
            epoch: a.epoch,
            node: a.node,
            points: vec![Point { seqno: 0, at: now, tree }],
            synced: 0,
            published: 0,
            torn: None,
            fenced,
            fenced_first: 0,
            releasing: false,
            released: false,
            closed: false,
            lost: false,
        };
        self.openings.insert(a.session, history);
        Ok(())
    }

    /// An operation was accepted.
    pub fn accepted(&mut self, session: u64, op: &Op, made: u64, seqno: u64, now: Duration) {
        if let Some(h) = self.openings.get_mut(&session) {
            let mut tree = Tree::clone(h.last());
            tree.apply(op, made);
            h.points.push(Point { seqno, at: now, tree: Arc::new(tree) });
        }
    }

    /// Everything up to a record was answered as on the node's disk.
    pub fn synced(&mut self, session: u64, upto: u64) {
        if let Some(h) = self.openings.get_mut(&session) {
            h.synced = h.synced.max(h.index_of(upto));
        }
    }

    /// Everything up to a record was answered as published.
    ///
    /// # Errors
    /// The promise that this breaks.
    pub fn published(&mut self, session: u64, upto: u64) -> Result<(), String> {
        let Some(h) = self.openings.get_mut(&session).filter(|h| !h.lost) else { return Ok(()) };
        let at = h.index_of(upto);
        h.published = h.published.max(at);
        match h.fenced {
            Some(fenced) if fenced < at => Err(format!(
                "epoch {} of {} was told that point {at} is published, and the next opening started with point {fenced}",
                h.epoch, h.workspace
            )),
            _ => Ok(()),
        }
    }

    /// The node's power was cut, or its disk failed.
    pub fn torn(&mut self, node: usize, at: Duration) {
        for h in self.openings.values_mut().filter(|h| h.node == node && h.torn.is_none()) {
            h.torn = Some(at);
        }
    }
    /// The node's disk fails flushes: nothing is timely any more.
    pub fn disk_failed(&mut self, node: usize) {
        for h in self.openings.values_mut().filter(|h| h.node == node) {
            h.torn = Some(Duration::ZERO);
        }
    }

    /// What the fork of a workspace may hold that began when `since` was its epoch, with `published` as the first point.
    pub fn fork_of(&self, workspace: &str, since: Option<(u64, usize)>) -> Vec<Arc<Tree>> {
        let mut trees = Vec::new();
        for h in self.openings.values().filter(|h| h.workspace == workspace) {
            let from = match since {
                Some((epoch, _)) if h.epoch < epoch => continue,
                Some((epoch, first)) if h.epoch == epoch => first,
                _ => 0,
            };
            trees.extend(h.points[from.min(h.points.len() - 1)..].iter().map(|p| p.tree.clone()));
        }
        if since.is_none()
            && let Some(known) = self.workspaces.get(workspace)
        {
            trees.extend(known.start.iter().cloned());
        }
        trees
    }
    /// Where a fork that begins now may start: the last opening's epoch and its first point that is certainly published.
    pub fn fork_floor(&self, workspace: &str) -> Option<(u64, usize)> {
        let (epoch, session) = self.epochs(workspace).into_iter().next_back()?;
        Some((epoch, self.openings.get(&session)?.published))
    }

    /// A tail became a workspace.
    ///
    /// # Errors
    /// The promise that this breaks.
    pub fn recovered(&mut self, from: &str, epoch: u64, name: &str) -> Result<(), String> {
        let found = self.openings.values().find(|h| h.workspace == from && h.epoch == epoch);
        // An opening that was made and never told wrote nothing.
        let Some(h) = found else { return Ok(()) };
        let start = h.points[h.floor()..].iter().map(|p| p.tree.clone()).collect();
        self.workspaces.insert(name.to_owned(), Known { start, lost: h.lost });
        Ok(())
    }

    /// A snapshot of a session was cut at a record.
    pub fn cut(&mut self, name: &str, session: u64, seqno: u64) {
        let Some(h) = self.openings.get(&session) else { return };
        if let Some(s) = self.snapshots.get_mut(name) {
            s.cut = Cut::At(h.points[h.index_of(seqno)].tree.clone());
        }
    }
    /// What a snapshot may hold.
    pub fn snapshot_trees(&self, name: &str) -> Vec<Arc<Tree>> {
        match self.snapshots.get(name).map(|s| &s.cut) {
            Some(Cut::At(tree)) => vec![tree.clone()],
            Some(Cut::From(session, index)) => {
                let points = self.openings.get(session).map_or(&[][..], |h| &h.points[(*index).min(h.points.len() - 1)..]);
                points.iter().map(|p| p.tree.clone()).collect()
            }
            None => Vec::new(),
        }
    }

    /// Nothing is promised of a workspace any more.
    pub fn lose(&mut self, workspace: &str) {
        if let Some(w) = self.workspaces.get_mut(workspace) {
            w.lost = true;
        }
        for h in self.openings.values_mut().filter(|h| h.workspace == workspace) {
            h.lost = true;
        }
    }
}
