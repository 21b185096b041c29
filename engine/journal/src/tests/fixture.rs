//! Pins the bytes of format version 1: what this code writes, and that it reads what was written then.

use hiloop_env::Env;
use hiloop_types::Seqno;

use super::{open_with, root, small};
use crate::disk::Disk;
use crate::{Class, SimDisk};

/// One file a line: path below the node directory, length, bytes without the zeros at the end.
const FIXTURE: &str = include_str!("../../tests/fixtures/journal-v1.hex");

fn dump(disk: &SimDisk) -> String {
    let mut out = String::new();
    for folder in ["journal", "staging"] {
        for name in disk.list(&root().join(folder)).unwrap() {
            let file = disk.open(&root().join(folder).join(&name)).unwrap();
            let mut bytes = vec![0; file.size().unwrap() as usize];
            file.read_at(&mut bytes, 0).unwrap();
            let len = bytes.len();
            while bytes.last() == Some(&0) {
                bytes.pop();
            }
            let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
            out += &format!("{folder}/{name} {len} {hex}\n");
        }
    }
    out
}

fn load(text: &str) -> SimDisk {
    let disk = SimDisk::new(0, &root());
    for folder in ["journal", "staging"] {
        disk.create_dir(&root().join(folder)).unwrap();
    }
    for line in text.lines() {
        let [name, len, hex] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("bad line") };
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
        let file = disk.create(&root().join(name)).unwrap();
        file.allocate(len.parse().unwrap()).unwrap();
        file.write_at(&bytes, 0).unwrap();
    }
    disk
}

#[test]
fn version_1_is_written_and_read_as_it_was() {
    let disk = SimDisk::new(1, &root());
    let env = Env::simulated(9).0;
    let (journal, ..) = open_with(&disk, &env, small(), 7).unwrap();
    let staged = journal.stage(b"staged bytes").unwrap().unwrap();
    journal.append(Class::Data, 0x1122, 5, &[b"first"], &[staged.reference()]).unwrap();
    journal.append(Class::Reserve, 0x3344, 6, &[b"sec", b"ond"], &[]).unwrap();
    journal.commit(Seqno(8)).unwrap();
    journal.release(Seqno(7)).unwrap();
    journal.append(Class::Data, 0x1122, 7, &[], &[]).unwrap();
    drop((staged, journal));
    let written = dump(&disk);
    assert!(written == FIXTURE, "the format changed; today's bytes:\n{written}");

    let disk = load(FIXTURE);
    let (journal, report, seen) = open_with(&disk, &env, small(), 0).unwrap();
    assert!(report.damage.is_none());
    assert_eq!((report.flushed, report.rewritten, report.next, journal.released()), (Seqno(8), 1, Seqno(10), Seqno(7)));
    let seen: Vec<_> = seen.iter().map(|s| (s.seqno.0, s.stream, s.kind, &s.body[..])).collect();
    assert_eq!(seen, [(8, 0x3344, 6, &b"second"[..]), (9, 0x1122, 7, b"")]);
}
