//! The tree against an ordered map, its shape, its costs, its bytes.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use hiloop_types::ErrorKind;
use proptest::prelude::*;

use super::shape::{STORED, Shape};
use super::testing::{Aside, Memory};
use super::*;
use crate::testing::noise;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
type Batch = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

const TINY: Shape = Shape::tiny(120, 200);

fn changes(batch: &Batch) -> impl Iterator<Item = Result<(Bytes, Option<Bytes>)>> + Send + '_ {
    batch.iter().map(|(k, v)| Ok((Bytes::copy_from_slice(k), v.as_deref().map(Bytes::copy_from_slice))))
}

fn build(store: &mut Memory, shape: Shape, model: &Model) -> RootRef {
    let mut builder = Builder::at_level(store, shape, 0);
    for (k, v) in model {
        builder.push(k, v).unwrap();
    }
    builder.finish().unwrap()
}

/// Applies while every node is missed once, with the new nodes kept away from the source.
fn apply(store: &mut Memory, shape: Shape, old: Option<&RootRef>, batch: &Batch) -> Applied {
    let mut sink = Aside::of(store);
    let mut apply = Apply::with_shape(shape, old, changes(batch));
    store.forget();
    let applied = loop {
        match apply.run(store, &mut sink) {
            Ok(applied) => break applied,
            Err(Access::Miss(node)) => store.fetch(&node),
            Err(Access::Error(e)) => panic!("{e}"),
        }
    };
    *store.resident.borrow_mut() = None;
    sink.merge_into(store);
    applied
}

fn change_model(model: &mut Model, batch: &Batch) {
    for (k, v) in batch {
        match v {
            Some(v) => drop(model.insert(k.clone(), v.clone())),
            None => drop(model.remove(k)),
        }
    }
}

/// Drives an iterator over misses.
fn drive<T>(store: &Memory, mut next: impl FnMut() -> Option<Result<T, Access>>) -> Vec<T> {
    let mut out = Vec::new();
    loop {
        match next() {
            None => return out,
            Some(Ok(item)) => out.push(item),
            Some(Err(Access::Miss(node))) => store.fetch(&node),
            Some(Err(Access::Error(e))) => panic!("{e}"),
        }
    }
}

fn scan(store: &Memory, root: &RootRef, range: KeyRange) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut scan = Scan::new(store, root, range);
    drive(store, || scan.next()).into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
}

fn have<T>(found: Result<T, Access>) -> T {
    found.unwrap_or_else(|e| panic!("{e:?}"))
}

fn number(n: u64) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    // Few bytes of few values: neighbours, prefixes of each other, the empty key.
    proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0x7f), Just(0xff), any::<u8>()], 0..5)
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..40)
}

fn model() -> impl Strategy<Value = Model> {
    proptest::collection::btree_map(key(), value(), 0..400)
}

fn batch() -> impl Strategy<Value = Batch> {
    proptest::collection::btree_map(key(), proptest::option::weighted(0.6, value()), 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_history_of_batches_ends_in_the_tree_of_its_content(start in model(), batches in proptest::collection::vec(batch(), 1..6), clear: bool) {
        let mut store = Memory { per_pack: 3, ..Memory::default() };
        let mut model = start.clone();
        let mut root = build(&mut store, TINY, &model);
        let mut batches = batches;
        if clear {
            // Delete all but every 100th: the tree shrinks by levels.
            batches.push(model.keys().enumerate().filter(|(i, _)| i % 100 != 0).map(|(_, k)| (k.clone(), None)).collect());
        }
        for batch in &batches {
            let before = model.clone();
            change_model(&mut model, batch);
            let old = root;
            let applied = apply(&mut store, TINY, Some(&old), batch);
            root = applied.root;
            prop_assert_eq!(root.records, model.len() as u64);
            let bulk = build(&mut Memory::default(), TINY, &model);
            prop_assert_eq!((root.node.id, root.level), (bulk.node.id, bulk.level), "the shape is a function of the content");
            prop_assert_eq!(scan(&store, &root, KeyRange::all()), model.clone().into_iter().collect::<Vec<_>>());
            if model == before {
                prop_assert_eq!(root, old);
            }
            // The difference is exact, over misses.
            store.forget();
            let mut diff = Diff::new(&store, &old, &root);
            let found = drive(&store, || diff.next());
            *store.resident.borrow_mut() = None;
            let keys: std::collections::BTreeSet<_> = before.keys().chain(model.keys()).collect();
            let wanted: Vec<_> = keys.into_iter().filter(|k| before.get(*k) != model.get(*k)).map(|k| {
                let bytes = |v: Option<&Vec<u8>>| v.map(|v| Bytes::copy_from_slice(v));
                Change { key: Bytes::copy_from_slice(k), old: bytes(before.get(k)), new: bytes(model.get(k)) }
            }).collect();
            prop_assert_eq!(found, wanted);
        }
    }

    #[test]
    fn a_first_batch_builds_the_tree(batch in batch()) {
        let mut store = Memory::default();
        let mut model = Model::new();
        change_model(&mut model, &batch);
        let root = apply(&mut store, TINY, None, &batch).root;
        prop_assert_eq!(root, build(&mut Memory::default(), TINY, &model));
    }

    #[test]
    fn points_and_ranges_answer_as_the_model(model in model(), probes in proptest::collection::vec((key(), key()), 1..20)) {
        let mut store = Memory::default();
        let root = build(&mut store, TINY, &model);
        for (a, b) in &probes {
            prop_assert_eq!(have(get(&store, &root, a)).map(|v| v.to_vec()), model.get(a).cloned());
            let below = model.range(..=a.clone()).next_back().filter(|(k, _)| k.starts_with(&a[..a.len().min(1)]));
            let found = have(floor(&store, &root, &a[..a.len().min(1)], a)).map(|(k, v)| (k.to_vec(), v.to_vec()));
            prop_assert_eq!(found, below.map(|(k, v)| (k.clone(), v.clone())));
            for range in [KeyRange::between(a, b), KeyRange::starting_at(a), KeyRange::prefix(a), KeyRange::starting_at(a).after(b)] {
                let wanted: Vec<_> = model.iter().filter(|(k, _)| match () {
                    () if range == KeyRange::between(a, b) => *k >= a && *k < b,
                    () if range == KeyRange::prefix(a) => k.starts_with(a),
                    () if range == KeyRange::starting_at(a) => *k >= a,
                    () => *k >= a && *k > b,
                }).map(|(k, v)| (k.clone(), v.clone())).collect();
                // What is listed as missing is all that the scan then asks for.
                store.forget();
                loop {
                    let nodes = missing(&store, &root, &range, 3).unwrap();
                    prop_assert!(nodes.len() <= 3);
                    if nodes.is_empty() {
                        break;
                    }
                    nodes.iter().for_each(|n| store.fetch(n));
                }
                let held = store.resident.borrow().as_ref().map(HashSet::len);
                prop_assert_eq!(scan(&store, &root, range), wanted);
                prop_assert_eq!(store.resident.borrow().as_ref().map(HashSet::len), held);
                *store.resident.borrow_mut() = None;
            }
        }
    }

    #[test]
    fn any_bytes_are_a_node_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300), level in 0u8..3) {
        let mut bytes = bytes;
        let _ = Node::parse(Bytes::from(bytes.clone()));
        // Past the header's checks too.
        let mut header = b"HN\x01".to_vec();
        header.push(level);
        bytes.splice(0..bytes.len().min(4), header);
        let _ = Node::parse(Bytes::from(bytes));
    }

    #[test]
    fn a_changed_byte_never_passes(model in proptest::collection::btree_map(key(), value(), 1..200), at in any::<prop::sample::Index>(), xor in 1u8..) {
        let mut store = Memory { per_pack: 2, ..Memory::default() };
        let root = build(&mut store, TINY, &model);
        let node = store.node(&root.node).unwrap();
        let mut bytes = node.bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= xor;
        if let Ok(read) = Node::parse(Bytes::from(bytes.clone())) {
            for i in 0..read.len() {
                let _ = (read.record(i), read.child(i));
            }
        }
        prop_assert_eq!(Node::decode(&root.node.id, Bytes::from(bytes)).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

fn numbered(n: u64) -> Model {
    (0..n).map(|i| (number(i), noise(i, 40))).collect()
}

#[test]
fn empty_trees() {
    let mut store = Memory::default();
    let empty = build(&mut store, TINY, &Model::new());
    assert_eq!((empty.level, empty.records), (0, 0));
    assert!(have(get(&store, &empty, b"")).is_none());
    assert!(scan(&store, &empty, KeyRange::all()).is_empty());
    let model = numbered(300);
    let full = apply(&mut store, TINY, Some(&empty), &model.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect()).root;
    assert!(full.level >= 3, "{full:?}");
    let emptied = apply(&mut store, TINY, Some(&full), &model.keys().map(|k| (k.clone(), None)).collect()).root;
    assert_eq!(emptied.node.id, empty.node.id);
    let mut diff = Diff::new(&store, &full, &emptied);
    assert_eq!(drive(&store, || diff.next()).len(), 300);
    let mut walk = Walk::new();
    walk.add(&emptied);
    assert_eq!(drive(&store, || walk.next(&store)).len(), 1);
}

#[test]
fn deleting_down_to_one_record_leaves_a_leaf() {
    let mut store = Memory::default();
    let model = numbered(500);
    let root = build(&mut store, TINY, &model);
    for keep in [0, 250, 499] {
        let batch: Batch = model.keys().filter(|k| **k != number(keep)).map(|k| (k.clone(), None)).collect();
        let one = apply(&mut store, TINY, Some(&root), &batch).root;
        assert_eq!((one.level, one.records), (0, 1), "{keep}");
        assert_eq!(have(get(&store, &one, &number(keep))).unwrap(), model[&number(keep)]);
    }
}

#[test]
fn stored_shape_keeps_200_000_records_in_two_levels_and_costs_follow_the_change() {
    let mut store = Memory { per_pack: 100, ..Memory::default() };
    let model = numbered(200_000);
    let root = build(&mut store, STORED, &model);
    assert_eq!(root.level, 1);
    let leaves = store.len() - 1;
    assert!((120..220).contains(&leaves), "{leaves} leaves for 10 MB");

    // One changed value: one leaf and the root, whatever the tree's size.
    let one: Batch = [(number(77_777), Some(b"changed".to_vec()))].into();
    store.reads.set(0);
    let applied = apply(&mut store, STORED, Some(&root), &one);
    assert!(applied.nodes_put <= 3, "{applied:?}");
    store.reads.set(0);
    let mut diff = Diff::new(&store, &root, &applied.root);
    assert_eq!(drive(&store, || diff.next()).len(), 1);
    assert!(store.reads.get() <= 8, "{} nodes read for one change", store.reads.get());

    // Appending touches the last leaf only.
    let more: Batch = (200_000..200_100).map(|i| (number(i), Some(noise(i, 40)))).collect();
    assert!(apply(&mut store, STORED, Some(&root), &more).nodes_put <= 3);

    // Writing what is there puts nothing and keeps the root.
    let same: Batch = [(number(5), Some(noise(5, 40))), (number(900_000), None)].into();
    assert_eq!(apply(&mut store, STORED, Some(&root), &same), Applied { root, nodes_put: 0 });

    // A read takes one node a level.
    store.reads.set(0);
    have(get(&store, &root, &number(123_456))).unwrap();
    assert_eq!(store.reads.get(), 2);
}

#[test]
fn missing_for_lists_the_leaves_of_a_batch() {
    let mut store = Memory::default();
    let root = build(&mut store, TINY, &numbered(1000));
    store.forget();
    let keys: Vec<_> = [3, 4, 500, 999].map(number).into();
    loop {
        let nodes = missing_for(&store, &root, keys.iter().map(|k| &**k), 100).unwrap();
        if nodes.is_empty() {
            break;
        }
        nodes.iter().for_each(|n| store.fetch(n));
    }
    for key in &keys {
        have(get(&store, &root, key)).unwrap();
    }
    assert!(matches!(get(&store, &root, &number(250)), Err(Access::Miss(_))));
}

#[test]
fn leaves_are_told_without_reading_them() {
    let mut store = Memory::default();
    let root = build(&mut store, TINY, &numbered(1000));
    assert!(root.level >= 2);
    for (from, to) in [(0, 1000), (3, 4), (400, 600), (990, 2000), (5, 5)] {
        let range = KeyRange::between(&number(from), &number(to));
        store.forget();
        let told = loop {
            match leaves(&store, &root, &range, 1000) {
                Ok(told) => break told,
                Err(Access::Miss(node)) => store.fetch(&node),
                Err(Access::Error(e)) => panic!("{e}"),
            }
        };
        let limited = leaves(&store, &root, &range, 2).unwrap();
        assert_eq!(limited, told[..told.len().min(2)]);
        // The leaves are what a scan reads besides.
        let missed: Vec<_> = missing(&store, &root, &range, 1000).unwrap();
        assert_eq!(missed, told, "{from}..{to}");
    }
}

#[test]
fn a_range_below_the_first_key_misses_what_its_scan_reads() {
    let mut store = Memory::default();
    let root = build(&mut store, TINY, &(50..300).map(|i| (number(i), noise(i, 20))).collect());
    let range = KeyRange::between(&number(1), &number(9));
    store.forget();
    let mut listed = 0;
    loop {
        let nodes = missing(&store, &root, &range, 9).unwrap();
        if nodes.is_empty() {
            break;
        }
        listed += nodes.len();
        nodes.iter().for_each(|n| store.fetch(n));
    }
    assert_eq!(listed, usize::from(root.level) + 1);
    assert!(Scan::new(&store, &root, range).next().is_none());
}

#[test]
fn a_walk_sees_each_place_once_over_forks() {
    let mut store = Memory { per_pack: 4, ..Memory::default() };
    let a = build(&mut store, TINY, &numbered(400));
    let b = apply(&mut store, TINY, Some(&a), &[(number(200), None)].into()).root;
    let all = store.len();
    store.forget();
    let mut walk = Walk::new();
    walk.add(&a);
    walk.add(&b);
    walk.add(&a);
    let seen = drive(&store, || walk.next(&store));
    assert_eq!(seen.len(), all);
    assert_eq!(seen.iter().map(|(r, _)| r).collect::<HashSet<_>>().len(), all);
    *store.resident.borrow_mut() = None;

    // The same content placed again is another set of places: a marker must see both.
    let c = build(&mut store, TINY, &numbered(400));
    assert_eq!((c.node.id, c == a), (a.node.id, false));
    walk.add(&c);
    assert!(drive(&store, || walk.next(&store)).len() > 10);
}

#[test]
fn bad_input_is_named() {
    let mut store = Memory::default();
    let mut builder = Builder::new(&mut store);
    builder.push(b"b", b"").unwrap();
    for key in [&b"b"[..], b"a"] {
        assert_eq!(builder.push(key, b"").unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(builder.push(&[b'c'; KEY_MAX + 1], b"").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(builder.push(b"c", &vec![0; VALUE_MAX + 1]).unwrap_err().kind(), ErrorKind::Invalid);
    builder.push(&[b'c'; KEY_MAX], &vec![0; VALUE_MAX]).unwrap();
    let root = builder.finish().unwrap();

    let unordered = ["d", "c"].map(|k| Ok((Bytes::from(k), None)));
    let failing = [Err(Error::closed("overlay is gone"))];
    let mut sink = Aside::of(&store);
    let Err(Access::Error(e)) = Apply::new(Some(&root), unordered.into_iter()).run(&store, &mut sink) else { panic!("unordered") };
    assert_eq!(e.kind(), ErrorKind::Invalid);
    let Err(Access::Error(e)) = Apply::new(Some(&root), failing.into_iter()).run(&store, &mut sink) else { panic!("failing") };
    assert_eq!(e.kind(), ErrorKind::Closed);
}

#[test]
fn a_source_that_answers_another_node_is_found_out() {
    struct Wrong<'s>(&'s Memory, NodeRef, NodeRef);
    impl NodeSource for Wrong<'_> {
        fn node(&self, node: &NodeRef) -> Result<Arc<Node>, Access> {
            self.0.node(if *node == self.1 { &self.2 } else { node })
        }
    }
    let mut store = Memory::default();
    let root = build(&mut store, TINY, &numbered(100));
    let top = store.node(&root.node).unwrap();
    let (first, second) = (top.child(0).unwrap().node, top.child(1).unwrap().node);
    let wrong = Wrong(&store, first, second);
    assert!(matches!(get(&wrong, &root, &number(0)), Err(Access::Error(e)) if e.kind() == ErrorKind::Corrupt));
    let wrong = Wrong(&store, root.node, first);
    assert!(matches!(get(&wrong, &root, &number(0)), Err(Access::Error(e)) if e.kind() == ErrorKind::Corrupt));
}

#[test]
fn the_largest_nodes_fit_a_frame() {
    // Every key avoids an end by chance only, so force the maximum: values of the greatest size, children in packs of their own.
    let mut store = Memory { per_pack: 1, ..Memory::default() };
    let model: Model = (0..40u64).map(|i| (number(i), vec![i as u8; VALUE_MAX])).collect();
    build(&mut store, STORED, &model);
    let mut writer = super::writer::NodeWriter::new(STORED, 1);
    let mut count = 0u64;
    loop {
        count += 1;
        let pack = hiloop_types::PackId::from_bytes(&[count as u8; 36]);
        let pack = hiloop_types::PackId { sequence: count, ..pack };
        let loc = FrameLoc { pack, offset: 0, stored_len: 1, plain_len: 1, codec: crate::Codec::Raw };
        // The shortest keys that are distinct make the most places a byte.
        if writer.push_child(&count.to_be_bytes()[6..], &NodeRef { id: NodeId([count as u8; 32]), loc }, 1) && count > 10_000 {
            break;
        }
    }
    let (id, node) = writer.finish();
    assert!(node.bytes().len() as u64 <= hiloop_types::limits::CHUNK_MAX, "{}", node.bytes().len());
    let back = Node::decode(&id, node.bytes().clone()).unwrap();
    assert_eq!(back.child(count as usize - 1).unwrap().node.loc.pack.sequence, count);
}

#[test]
fn identity_does_not_cover_places_and_roots_are_json() {
    let (mut one, mut other) = (Memory::default(), Memory { puts: 1000, per_pack: 2, ..Memory::default() });
    let (a, b) = (build(&mut one, TINY, &numbered(100)), build(&mut other, TINY, &numbered(100)));
    assert_eq!(a.node.id, b.node.id);
    assert_ne!(a.node.loc, b.node.loc);
    let json = serde_json::to_string(&b).unwrap();
    assert_eq!(serde_json::from_str::<RootRef>(&json).unwrap(), b);
}

#[test]
fn fixture_of_the_bytes() {
    let mut store = Memory { per_pack: 2, ..Memory::default() };
    let root = build(&mut store, TINY, &(0..12).map(|i| (number(i), vec![i as u8; 9])).collect());
    let mut walk = Walk::new();
    walk.add(&root);
    let hex = |b: &Bytes| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let nodes: Vec<_> = drive(&store, || walk.next(&store)).iter().map(|(r, n)| format!("{} {}", r.id.to_hex(), hex(n.bytes()))).collect();
    assert_eq!(nodes.join("\n"), include_str!("../../tests/fixtures/nodes-v1.hex").trim());
}
