//! Scanning a range of keys through all layers and the tree.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::ops::Bound;

use bytes::Bytes;
use hiloop_manifest::schema::{Key, KeyKind, Prefix, Value};
use hiloop_manifest::tree::{KeyRange, RootRef, Scan};
use hiloop_types::Result;

use crate::hydrate::Hydrator;
use crate::stop::Stop;

type Map = BTreeMap<Key, Option<Value>>;

/// One layer's part of the range, and its next entry.
struct Over<'a> {
    rest: Range<'a, Key, Option<Value>>,
    head: Option<(&'a Key, &'a Option<Value>)>,
}

/// Calls `f` for each key of `prefix` from `from` on, in order, until it returns false. `overlays` come newest first.
pub(crate) fn scan<'a>(
    overlays: impl Iterator<Item = &'a Map>,
    root: Option<&RootRef>,
    source: &Hydrator,
    prefix: &Prefix,
    from: &[u8],
    f: &mut dyn FnMut(KeyKind<'_>, &Value) -> bool,
) -> Result<(), Stop> {
    let end = prefix.end();
    let from = from.max(prefix.start());
    let mut layers: Vec<Over<'a>> = overlays
        .map(|m| {
            let mut rest = m.range::<[u8], _>((Bound::Included(from), Bound::Excluded(end.as_slice())));
            let head = rest.next();
            Over { rest, head }
        })
        .filter(|o| o.head.is_some())
        .collect();
    let mut tree = root.map(|r| Scan::new(source, r, KeyRange::between(from, &end)));
    let mut below: Option<(Bytes, Bytes)> = step(tree.as_mut())?;
    loop {
        let over: Option<&Key> = layers.iter().filter_map(|o| o.head.map(|(k, _)| k)).min();
        let take_below = match (over, &below) {
            (None, None) => return Ok(()),
            (None, Some(_)) => true,
            (Some(_), None) => false,
            (Some(k), Some((b, _))) => b[..] < *k.as_bytes(),
        };
        if take_below {
            let Some((key, bytes)) = below.take() else { return Ok(()) };
            let kind = KeyKind::parse(&key)?;
            let value = Value::decode(kind, &bytes, &[])?;
            below = step(tree.as_mut())?;
            if !f(kind, &value) {
                return Ok(());
            }
            continue;
        }
        let Some(key) = over else { return Ok(()) };
        if below.as_ref().is_some_and(|(b, _)| b[..] == *key.as_bytes()) {
            below = step(tree.as_mut())?;
        }
        let mut newest: Option<&Option<Value>> = None;
        for o in &mut layers {
            if let Some((_, v)) = o.head.filter(|(k, _)| *k == key) {
                newest.get_or_insert(v);
                o.head = o.rest.next();
            }
        }
        if let Some(Some(value)) = newest
            && !f(key.kind(), value)
        {
            return Ok(());
        }
    }
}

fn step(tree: Option<&mut Scan<'_, Hydrator>>) -> Result<Option<(Bytes, Bytes)>, Stop> {
    match tree.and_then(Iterator::next) {
        None => Ok(None),
        Some(Ok(kv)) => Ok(Some(kv)),
        Some(Err(a)) => Err(a.into()),
    }
}
