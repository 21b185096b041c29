use hiloop_types::{Ino, limits};

use super::{Fs, ROOT, USER, code};
use crate::fs::FsResult;
use crate::fs::attr::{SetAttr, setattr};
use crate::fs::data::{WriteMode, copy_range, seek, write};
use crate::fs::orphan::{Reaped, reap};
use crate::fs::space::{fallocate, statfs};

const MIB: u64 = limits::MIB;

impl Fs {
    fn allocate(&self, ino: Ino, mode: i32, from: u64, to: u64) -> FsResult<()> {
        let mut at = from;
        while at < to || from >= to {
            at = self.change(|tx| fallocate(tx, ROOT, ino, mode, at, to))?;
        }
        Ok(())
    }
    fn seek(&self, ino: Ino, at: u64, whence: i32) -> FsResult<i64> {
        self.see(|v| seek(v, ino, at as i64, whence))
    }
    fn truncate(&self, ino: Ino, size: u64) {
        self.change(|tx| setattr(tx, ROOT, ino, &SetAttr { size: Some(size), ..SetAttr::default() })).unwrap();
    }
}

#[test]
fn what_was_never_written_reads_as_zeros_and_takes_no_space() {
    let fs = Fs::new();
    let f = fs.file("f");
    let far = 5 * limits::GIB + 17;
    assert_eq!(fs.write(f, far, b"end").unwrap(), 3);
    assert_eq!((fs.attr(f).size, fs.attr(f).allocated), (far + 3, 3));
    assert_eq!(fs.read(f, far - 2, 100), b"\0\0end");
    assert_eq!(fs.read(f, far + 3, 10), b"");
    assert_eq!(fs.seek(f, 0, libc::SEEK_DATA).unwrap() as u64, far);
    assert_eq!(fs.seek(f, 0, libc::SEEK_HOLE).unwrap(), 0);
    assert_eq!(fs.seek(f, far, libc::SEEK_HOLE).unwrap() as u64, far + 3);
    assert_eq!(code(fs.seek(f, far + 3, libc::SEEK_DATA)), libc::ENXIO);
    assert_eq!(code(fs.seek(f, 0, 9)), libc::EINVAL);
    fs.truncate(f, 100);
    assert_eq!(code(fs.seek(f, 5, libc::SEEK_DATA)), libc::ENXIO);
    assert_eq!(fs.attr(f).allocated, 0);
}

#[test]
fn truncating_down_and_up_shows_zeros() {
    let fs = Fs::new();
    let f = fs.file("f");
    fs.write(f, 0, &[9; 300_000]).unwrap();
    fs.truncate(f, 10);
    fs.truncate(f, 300_000);
    let content = fs.read(f, 0, 300_000);
    assert!(content[..10].iter().all(|b| *b == 9) && content[10..].iter().all(|b| *b == 0));
    assert_eq!(fs.attr(f).allocated, 10);
}

#[test]
fn writes_end_at_the_largest_size() {
    let fs = Fs::new();
    let f = fs.file("f");
    assert_eq!(fs.write(f, limits::FILE_MAX - 4, b"12345678").unwrap(), 4);
    assert_eq!(code(fs.write(f, limits::FILE_MAX, b"x")), libc::EFBIG);
    assert_eq!(code(fs.write(fs.dir("d"), 0, b"x")), libc::EISDIR);
}

#[test]
fn fallocate_knows_its_modes() {
    let fs = Fs::new();
    let f = fs.file("f");
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    let punch = libc::FALLOC_FL_PUNCH_HOLE | keep;
    let zero = libc::FALLOC_FL_ZERO_RANGE;
    fs.allocate(f, 0, 0, MIB).unwrap();
    assert_eq!((fs.attr(f).size, fs.attr(f).allocated), (MIB, MIB));
    fs.allocate(f, keep, MIB, 3 * MIB).unwrap();
    assert_eq!((fs.attr(f).size, fs.attr(f).allocated), (MIB, 3 * MIB));
    fs.write(f, 0, &[1; 400_000]).unwrap();
    fs.allocate(f, punch, 1000, 200_000).unwrap();
    assert_eq!(fs.attr(f).allocated, 3 * MIB - 199_000);
    let content = fs.read(f, 999, 199_002);
    assert!(content[0] == 1 && content[199_001] == 1 && content[1..199_001].iter().all(|b| *b == 0));
    fs.allocate(f, zero | keep, 300_000, 350_000).unwrap();
    assert_eq!(fs.attr(f).allocated, 3 * MIB - 199_000, "zeroed space stays allocated");
    assert_eq!(fs.read(f, 299_999, 2), [1, 0]);
    fs.allocate(f, zero, 3 * MIB, 4 * MIB).unwrap();
    assert_eq!(fs.attr(f).size, 4 * MIB);
    for bad in [libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE, libc::FALLOC_FL_UNSHARE_RANGE] {
        assert_eq!(code(fs.allocate(f, bad, 0, MIB)), libc::EOPNOTSUPP, "{bad}");
    }
    assert_eq!(code(fs.allocate(f, 0, 5, 5)), libc::EINVAL);
    assert_eq!(code(fs.allocate(f, 0, 0, limits::FILE_MAX + 1)), libc::EFBIG);
    assert_eq!(code(fs.allocate(f, 0, 0, 65 * limits::GIB)), libc::ENOSPC);
    assert_eq!(code(fs.allocate(fs.dir("d"), 0, 0, 1)), libc::EISDIR);
}

#[test]
fn a_long_fallocate_goes_in_steps_and_reserved_space_is_a_hole_to_seek() {
    let fs = Fs::new();
    let f = fs.file("f");
    let size = limits::GIB + 5 * MIB;
    assert_eq!(fs.change(|tx| fallocate(tx, ROOT, f, 0, 0, size)).unwrap(), limits::GIB);
    fs.allocate(f, 0, limits::GIB, size).unwrap();
    assert_eq!((fs.attr(f).size, fs.attr(f).allocated), (size, size));
    assert_eq!(code(fs.seek(f, 0, libc::SEEK_DATA)), libc::ENXIO);
    fs.unlink("f").unwrap();
    assert_eq!(fs.change(|tx| reap(tx, f)).unwrap(), Reaped::More, "a large file goes in steps");
    while fs.change(|tx| reap(tx, f)).unwrap() == Reaped::More {}
    assert!(!fs.exists(f));
    assert_eq!(fs.ws.totals().bytes, 0);
}

#[test]
fn copy_file_range_shares_and_then_parts() {
    let fs = Fs::new();
    let (a, b) = (fs.file("a"), fs.file("b"));
    let data: Vec<u8> = (0..400_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    fs.write(a, 0, &data).unwrap();
    let copy = |from, to, len| fs.change(|tx| copy_range(tx, USER, from, to, len));
    assert_eq!(copy((a, 10), (b, 777), 500_000).unwrap(), 399_990);
    assert_eq!(fs.read(b, 777, 399_990), data[10..]);
    assert_eq!(fs.attr(b).size, 777 + 399_990);
    fs.write(a, 100, b"changed").unwrap();
    fs.write(b, 5000, b"other").unwrap();
    assert_eq!(fs.read(b, 777 + 90, 7), data[100..107]);
    assert_eq!(fs.read(a, 5000 - 767, 5), data[5000 - 767..5000 - 762]);
    assert_eq!(copy((a, 400_000), (b, 0), 10).unwrap(), 0, "at the end");
    assert_eq!(code(copy((b, 0), (b, 50), 100)), libc::EINVAL);
    assert_eq!(code(copy((a, 0), (fs.dir("d"), 0), 1)), libc::EISDIR);
    assert_eq!(code(copy((a, 0), (b, limits::FILE_MAX), 1)), libc::EFBIG);
}

#[test]
fn the_quota_counts_what_is_not_a_hole_and_gives_back() {
    let quota = 10 * MIB;
    let fs = Fs::with_quota(Some(quota));
    let (f, g) = (fs.file("f"), fs.file("g"));
    for i in 0..9 {
        fs.write(f, i * MIB, &vec![1; MIB as usize]).unwrap();
    }
    fs.truncate(f, 100 * limits::GIB);
    assert_eq!(fs.write(g, 100, &vec![2; 2 * MIB as usize]).unwrap() as u64, (100 + MIB) / 4096 * 4096 - 100, "as much as fits");
    assert_eq!(code(fs.write(g, 50 * MIB, &[3; 8192])), libc::ENOSPC);
    let whole = WriteMode { whole: true, ..WriteMode::default() };
    assert_eq!(code(fs.change(|tx| write(tx, g, MIB - 4096, &[2; 65_536], whole))), libc::ENOSPC, "written-back pages are never cut");
    assert_eq!(fs.write(f, 5, &vec![4; MIB as usize]).unwrap() as u64, MIB, "overwriting needs no room");
    assert_eq!(code(fs.allocate(g, 0, 20 * MIB, 21 * MIB)), libc::ENOSPC);
    let copied = fs.change(|tx| copy_range(tx, ROOT, (f, 0), (g, 30 * MIB), MIB));
    assert_eq!(code(copied), libc::ENOSPC, "a clone counts in full");
    let full = statfs(fs.ws.quota(), &fs.ws.totals());
    assert_eq!((full.blocks, full.free), (quota / 4096, 0));
    fs.truncate(f, 0);
    assert_eq!(fs.write(g, 50 * MIB, &[3; 8192]).unwrap(), 8192, "usable again");
    fs.unlink("g").unwrap();
    while fs.change(|tx| reap(tx, g)).unwrap() == Reaped::More {}
    assert_eq!(fs.ws.totals().bytes, 0);
}

#[test]
fn without_a_quota_there_is_room() {
    let fs = Fs::new();
    let s = statfs(fs.ws.quota(), &fs.ws.totals());
    assert_eq!((s.blocks - s.free, s.fragment, s.name_max), (0, 4096, 255));
    assert!(s.free > 1 << 30 && s.files_free > 1 << 30);
}
