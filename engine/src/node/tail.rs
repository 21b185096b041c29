//! What the journal holds of one opening: a stream's records behind its last published tree.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hiloop_journal::RecoveredRecord;
use hiloop_manifest::schema::{Key, Super, Totals, Value};
use hiloop_types::{Error, MetaBatch, MetaStore, Name, NameKind, Nonce, Result, ResultExt, Seqno, Session, WriterEpoch};
use serde::{Deserialize, Serialize};

use super::checkpoint;
use crate::layer::Layer;
use crate::record::{ATTEMPT, Batch, CHANGES, CLOSED, CUT, CUT_DONE, OPEN, PUBLISHED, PublishedDoc, StreamDoc, replay};
use crate::workspace::staged_at;

/// The part of a stream that outlives its journal segments; kept in the node's index.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StreamState {
    pub doc: StreamDoc,
    pub published: Option<PublishedDoc>,
    pub nonces: Vec<Nonce>,
    pub next_ino: u64,
    /// Snapshots that were cut and whose objects are not settled.
    #[serde(default)]
    pub cuts: Vec<(Seqno, Name)>,
    /// True where the directory is a copy of the one that wrote it: it may be recovered, never resumed (`protocols.md` 2.8).
    #[serde(default)]
    pub foreign: bool,
}

impl StreamState {
    /// Of an opening that has written nothing yet.
    pub fn opened(doc: StreamDoc) -> Self {
        Self { nonces: vec![doc.nonce], next_ino: doc.next_ino, published: None, cuts: Vec::new(), foreign: false, doc }
    }
    pub fn key(session: Session) -> Vec<u8> {
        [b"stream/".as_slice(), &session.0.to_be_bytes()].concat()
    }
    pub fn save(&self, batch: &mut MetaBatch) -> Result<()> {
        let body = serde_json::to_vec(self).map_err(|e| Error::internal(format!("cannot encode a stream: {e}")))?;
        batch.put(hiloop_types::Column::State, Self::key(self.doc.session), body);
        Ok(())
    }
}

/// One opening's records.
#[derive(Clone, Debug)]
pub(crate) struct Tail {
    pub stream: StreamState,
    records: Vec<(Seqno, Batch, u64)>,
    closed: bool,
    /// Layers below the records: those that the index holds, or all of a workspace that was attached and fenced.
    layers: Vec<Arc<Layer>>,
}

/// A tail folded over its published tree.
pub(crate) struct Folded {
    pub layers: VecDeque<Arc<Layer>>,
    pub active: Layer,
    pub next_ino: u64,
    pub last: Seqno,
}

impl Folded {
    pub fn totals(&self, below: Totals) -> Totals {
        self.all().fold(below, |so_far, layer| if layer.is_empty() { so_far } else { layer.totals })
    }
    /// Unpublished (bytes, operations).
    pub fn backlog(&self) -> (u64, u64) {
        (self.all().map(|l| l.bytes).sum(), self.all().map(|l| l.operations).sum())
    }
    /// The cut layers, each with a superblock of its moment: a live seal puts one, the journal's records hold none. Numbers
    /// of inodes that came after the cut count as used, which is harmless.
    pub fn counted_layers(&self, below: &Super, epoch: WriterEpoch) -> VecDeque<Arc<Layer>> {
        let counted = self.layers.iter().map(|layer| {
            if layer.is_empty() || layer.entries.contains_key(&Key::superblock()) {
                return layer.clone();
            }
            let mut layer = Layer::clone(layer);
            let superblock = Super { name_key: below.name_key, totals: layer.totals, next_ino: self.next_ino, epoch };
            layer.put(Key::superblock(), Some(Value::Super(Box::new(superblock))));
            Arc::new(layer)
        });
        counted.collect()
    }
    fn all(&self) -> impl Iterator<Item = &Layer> {
        self.layers.iter().map(AsRef::as_ref).chain(std::iter::once(&self.active))
    }
}

impl Tail {
    pub fn new(stream: StreamState) -> Self {
        Self { stream, records: Vec::new(), closed: false, layers: Vec::new() }
    }
    /// The tail of a workspace that was attached here and fenced.
    pub fn of_layers(stream: StreamState, layers: Vec<Arc<Layer>>) -> Self {
        Self { layers, ..Self::new(stream) }
    }
    pub fn published(&self) -> Seqno {
        self.stream.published.as_ref().map_or(Seqno(0), |p| p.sequence)
    }
    /// True where it holds nothing that is not published.
    pub fn is_done(&self) -> bool {
        let published = self.published();
        self.closed
            || (self.records.iter().all(|(s, ..)| *s <= published)
                && self.layers.iter().all(|l| l.last <= published)
                && self.stream.cuts.is_empty())
    }
    pub fn is_closed(&self) -> bool {
        self.closed
    }
    pub fn slabs(&self) -> Result<Vec<u64>> {
        let f = self.fold(self.published())?;
        Ok(f.layers.iter().flat_map(|l| l.slabs.iter().copied()).chain(f.active.slabs.iter().copied()).collect())
    }

    /// Takes one record of the stream.
    pub fn take(&mut self, r: &RecoveredRecord<'_>) -> Result<()> {
        match r.kind {
            CHANGES => {
                let staged: Vec<_> = r.staged.iter().map(staged_at).collect();
                let batch = Batch::decode(r.body, &staged).at(format!("journal record {}", r.seqno))?;
                let bytes = r.body.len() as u64 + staged.iter().map(|s| u64::from(s.len)).sum::<u64>();
                self.stream.next_ino = self.stream.next_ino.max(batch.next_ino);
                self.records.push((r.seqno, batch, bytes));
            }
            CUT => {
                let name = String::from_utf8_lossy(r.body).into_owned();
                let name = Name::new(NameKind::Snapshot, name)?;
                // The index may know it already.
                if !self.stream.cuts.iter().any(|(_, n)| *n == name) {
                    self.stream.cuts.push((r.seqno, name));
                }
            }
            CUT_DONE => self.stream.cuts.retain(|(_, n)| n.as_str().as_bytes() != r.body),
            ATTEMPT => {
                let nonce: [u8; 8] = r.body.try_into().map_err(|_| Error::corrupt(format!("journal record {} is no nonce", r.seqno)))?;
                self.stream.nonces.push(Nonce(u64::from_be_bytes(nonce)));
            }
            PUBLISHED => {
                let doc: PublishedDoc = decode(r)?;
                self.records.retain(|(s, ..)| *s > doc.sequence);
                self.layers.retain(|l| l.last > doc.sequence);
                self.stream.published = Some(doc);
            }
            CLOSED => self.closed = true,
            other => {
                return Err(
                    Error::corrupt(format!("journal record {} has kind {other}", r.seqno)).hint("a newer hiloop wrote this journal")
                );
            }
        }
        Ok(())
    }

    /// Turns the records into layers and returns those that the index does not hold yet. A tail is not written any more.
    pub fn settle(&mut self) -> Result<Vec<Arc<Layer>>> {
        if !self.is_done() {
            let folded = self.fold(self.published())?;
            let mut layers: Vec<_> = folded.layers.into();
            if !folded.active.is_empty() {
                layers.push(Arc::new(folded.active));
            }
            self.layers = layers;
            self.records.clear();
        }
        Ok(self.layers.iter().filter(|l| !l.checkpointed.load(Ordering::Acquire)).cloned().collect())
    }
    /// The last record that the journal need not hold for this tail.
    pub fn covered(&self) -> Seqno {
        let settled = self.records.is_empty() && self.layers.iter().all(|l| l.checkpointed.load(Ordering::Acquire));
        if settled { Seqno(u64::MAX) } else { self.published() }
    }

    /// Folds the records above `published` into layers, one per cut. A cut at `published` whose object is not settled is a layer without
    /// changes: its snapshot is put, or found to be there.
    pub fn fold(&self, published: Seqno) -> Result<Folded> {
        let mut out = Folded { layers: VecDeque::new(), active: Layer::default(), next_ino: self.stream.next_ino, last: published };
        for (at, name) in self.stream.cuts.iter().filter(|(s, _)| *s == published) {
            seal(&mut out, *at, name);
        }
        out.layers.extend(self.layers.iter().filter(|l| l.last > published).cloned());
        // Records that a layer of the index covers may still stand in the journal.
        let published = out.layers.back().map_or(published, |l| l.last);
        let mut cuts = self.stream.cuts.iter().filter(|(s, _)| *s > published).peekable();
        for (seqno, batch, bytes) in self.records.iter().filter(|(s, ..)| *s > published) {
            while let Some((at, name)) = cuts.next_if(|(at, _)| at < seqno) {
                seal(&mut out, *at, name);
            }
            out.active.totals = batch.totals;
            out.active.operations += 1;
            out.active.bytes += bytes;
            out.active.last = *seqno;
            replay(&mut out.active, batch.clone())?;
        }
        for (at, name) in cuts {
            seal(&mut out, *at, name);
        }
        // Attempts and confirmations have numbers too, but nothing of them is ever published: who waits for one waits for ever.
        out.last = out.layers.back().map_or(published, |l| l.last).max(out.active.last);
        Ok(out)
    }
}

fn seal(out: &mut Folded, at: Seqno, name: &Name) {
    let mut layer = std::mem::take(&mut out.active);
    layer.last = at;
    layer.cuts.push(name.clone());
    out.layers.push_back(Arc::new(layer));
}

fn decode<T: serde::de::DeserializeOwned>(r: &RecoveredRecord<'_>) -> Result<T> {
    serde_json::from_slice(r.body).map_err(|e| Error::corrupt(format!("journal record {} is damaged: {e}", r.seqno)))
}

/// Reads the streams that the index knows, with their checkpointed layers.
pub(crate) fn load(meta: &dyn MetaStore) -> Result<Vec<Tail>> {
    let mut out = Vec::new();
    let mut bad = None;
    meta.scan(hiloop_types::Column::State, b"stream/", &mut |_, v| {
        match serde_json::from_slice::<StreamState>(v) {
            Ok(s) => out.push(Tail::new(s)),
            Err(e) => bad = Some(Error::corrupt(format!("the node's index holds a damaged stream: {e}"))),
        }
        bad.is_none()
    })?;
    if let Some(bad) = bad {
        return Err(bad);
    }
    for tail in &mut out {
        tail.layers = checkpoint::load(meta, tail.stream.doc.session)?;
    }
    Ok(out)
}

/// Takes one record of the journal into the tail of its stream.
pub(crate) fn take(tails: &mut std::collections::BTreeMap<Session, Tail>, r: &RecoveredRecord<'_>) -> Result<()> {
    let session = Session(r.stream);
    if r.kind == OPEN {
        let doc: StreamDoc = decode(r)?;
        tails.entry(session).or_insert_with(|| Tail::new(StreamState::opened(doc)));
        return Ok(());
    }
    match tails.get_mut(&session) {
        Some(t) => t.take(r),
        // Its end was noted in the index before the journal let go of its last segment.
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiloop_types::Ino;

    /// Found by the power-cut suite: `flush` after a restart waited for the number of a confirmation.
    #[test]
    fn the_last_accepted_number_is_that_of_a_change_or_a_cut() {
        let doc = StreamDoc {
            store: "file:///s".into(),
            name: Name::new(NameKind::Workspace, "w").unwrap(),
            epoch: WriterEpoch(1),
            session: Session(1),
            nonce: Nonce(1),
            root: None,
            bases: Vec::new(),
            next_ino: 2,
            domain: Name::new(NameKind::Domain, "default").unwrap(),
        };
        let mut tail = Tail::new(StreamState { nonces: Vec::new(), next_ino: 2, published: None, cuts: Vec::new(), foreign: false, doc });
        let (changes, _) = Batch::default().encode();
        for (seqno, kind, body) in [(4, CHANGES, changes.as_slice()), (6, CUT, &b"s"[..]), (9, ATTEMPT, &[0; 8][..])] {
            tail.take(&RecoveredRecord { seqno: Seqno(seqno), stream: 1, kind, body, staged: &[] }).unwrap();
        }
        assert_eq!(tail.fold(Seqno(0)).unwrap().last, Seqno(6));
        assert_eq!(tail.fold(Seqno(8)).unwrap().last, Seqno(8), "all of it is published");
    }

    /// Found by the power-cut suite: a snapshot cut before a restart was published with the counts of the tree before it, from which
    /// all later ones went on.
    #[test]
    fn a_layer_cut_before_a_restart_gets_the_counts_of_its_moment() {
        let layer = |last: u64, inodes: u64, operations: u64| {
            let totals = Totals { inodes, bytes: 10 * inodes };
            let mut layer = Layer { last: Seqno(last), totals, operations, ..Layer::default() };
            if operations > 0 {
                layer.put(Key::orphan(Ino(last)), Some(Value::Unit));
            }
            layer
        };
        let below = Super { name_key: [7; 32], totals: Totals { inodes: 5, bytes: 100 }, next_ino: 9, epoch: WriterEpoch(1) };
        let mut live = layer(3, 5, 2);
        live.put(Key::superblock(), Some(Value::Super(Box::new(Super { next_ino: 12, ..below.clone() }))));
        let layers = [layer(2, 4, 1), live, layer(3, 0, 0), layer(5, 10, 1)].map(Arc::new);
        let folded = Folded { layers: layers.into(), active: layer(8, 11, 1), next_ino: 20, last: Seqno(8) };
        let counted = folded.counted_layers(&below, WriterEpoch(2));
        let found: Vec<_> = counted
            .iter()
            .map(|l| match l.entries.get(&Key::superblock()) {
                Some(Some(Value::Super(s))) => Some((s.totals.inodes, s.totals.bytes, s.next_ino, s.name_key)),
                _ => None,
            })
            .collect();
        assert_eq!(found, [Some((4, 40, 20, [7; 32])), Some((5, 100, 12, [7; 32])), None, Some((10, 100, 20, [7; 32]))]);
        assert_eq!(folded.totals(below.totals), Totals { inodes: 11, bytes: 110 });
        assert!(counted.iter().zip(&folded.layers).all(|(a, b)| a.last == b.last), "none is lost or moved");
    }
}
