use std::fs;
use std::path::Path;

use hiloop_types::limits::MEMORY_ROCKS;
use hiloop_types::{ErrorKind, check_conformance};

use super::*;

fn put(store: &RocksMeta, column: Column, key: &[u8], value: &[u8]) {
    let mut b = MetaBatch::new();
    b.put(column, key, value);
    store.write(b).unwrap();
}

/// What a crash leaves: the files as they are while the store is open.
fn crash_copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[test]
fn conforms() {
    let dir = tempfile::tempdir().unwrap();
    check_conformance(&mut |open| {
        drop(open);
        Box::new(RocksMeta::open(dir.path(), MEMORY_ROCKS).unwrap())
    });
}

#[test]
fn conforms_over_crashes() {
    let dir = tempfile::tempdir().unwrap();
    let mut n = 0;
    check_conformance(&mut |open| {
        let next = dir.path().join(format!("{}", n + 1));
        if open.is_some() {
            crash_copy(&dir.path().join(format!("{n}")), &next);
        }
        n += 1;
        Box::new(RocksMeta::open(&next, MEMORY_ROCKS).unwrap())
    });
}

#[test]
fn a_crash_loses_exactly_the_unflushed_batches() {
    let dir = tempfile::tempdir().unwrap();
    let store = RocksMeta::open(&dir.path().join("a"), MEMORY_ROCKS).unwrap();
    put(&store, Column::State, b"k", b"1");
    put(&store, Column::Overlay, b"k", b"1");
    store.flush().unwrap();
    put(&store, Column::State, b"k", b"2");
    crash_copy(&dir.path().join("a"), &dir.path().join("b"));
    let crashed = RocksMeta::open(&dir.path().join("b"), MEMORY_ROCKS).unwrap();
    assert_eq!(crashed.get(Column::State, b"k").unwrap(), Some(b"1".to_vec()));
    assert_eq!(crashed.get(Column::Overlay, b"k").unwrap(), Some(b"1".to_vec()));
}

#[test]
fn a_second_opening_is_a_named_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let _first = RocksMeta::open(dir.path(), MEMORY_ROCKS).unwrap();
    let err = RocksMeta::open(dir.path(), MEMORY_ROCKS).err().expect("locked");
    assert_eq!(err.kind(), ErrorKind::Conflict, "{err}");
}

#[test]
fn a_flipped_bit_is_reported_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let store = RocksMeta::open(dir.path(), MEMORY_ROCKS).unwrap();
    put(&store, Column::State, b"k", &[7; 4096]);
    store.flush().unwrap();
    drop(store);
    let table = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).find(|p| p.extension().is_some_and(|e| e == "sst")).unwrap();
    let mut bytes = fs::read(&table).unwrap();
    bytes[10] ^= 1;
    fs::write(&table, bytes).unwrap();
    let err = match RocksMeta::open(dir.path(), MEMORY_ROCKS) {
        Ok(store) => store.get(Column::State, b"k").expect_err("the block does not match its checksum"),
        Err(e) => e,
    };
    assert_eq!(err.kind(), ErrorKind::Corrupt, "{err}");
}

#[test]
fn memory_stays_within_its_budget_while_much_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = RocksMeta::open(dir.path(), 8 << 20).unwrap();
    for n in 0..200u32 {
        let mut b = MetaBatch::new();
        for m in 0..100u32 {
            b.put(Column::Residency, [n.to_be_bytes(), m.to_be_bytes()].concat(), vec![n as u8; 1000]);
        }
        store.write(b).unwrap();
    }
    let memtables: u64 = Column::ALL
        .iter()
        .map(|c| store.db.property_int_value_cf(store.column(*c), "rocksdb.cur-size-all-mem-tables").unwrap().unwrap())
        .sum();
    assert!(memtables < 8 << 20, "memtables hold {memtables} bytes of 20 MB written");
    let mut seen = 0;
    store
        .scan(Column::Residency, b"", &mut |_, v| {
            seen += 1;
            v.len() == 1000
        })
        .unwrap();
    assert_eq!(seen, 20_000);
}
