use hiloop_manifest::schema::FileKind;
use hiloop_types::{Ino, ROOT_INO};

use super::{Fs, ROOT};
use crate::fs::dir;
use crate::fs::rename::{Place, rename};

impl Fs {
    /// Up to `n` entries behind `cookie` and where to go on.
    fn some(&self, d: Ino, cookie: u64, end: u64, n: usize) -> (Vec<String>, u64) {
        self.see(|v| {
            let (mut names, mut at) = (Vec::new(), cookie);
            dir::read(v, d, cookie, end, &mut |item| {
                if names.len() == n {
                    return false;
                }
                names.push(String::from_utf8_lossy(item.name).into_owned());
                at = item.cookie;
                true
            })?;
            Ok((names, at))
        })
        .unwrap()
    }
    fn end(&self, d: Ino) -> u64 {
        self.see(|v| dir::end(v, d)).unwrap()
    }
    fn all(&self, d: Ino) -> Vec<String> {
        self.some(d, 0, self.end(d), usize::MAX).0
    }
}

#[test]
fn a_listing_starts_with_the_dots_and_resumes_at_any_cookie() {
    let fs = Fs::new();
    let d = fs.dir("d");
    for i in 0..10 {
        fs.make(FileKind::File, d, &format!("f{i}"));
    }
    let all = fs.all(d);
    assert_eq!(all[..3], [".", "..", "f0"]);
    assert_eq!(all.len(), 12);
    let (mut pieced, mut at) = (Vec::new(), 0);
    loop {
        let (some, next) = fs.some(d, at, fs.end(d), 1);
        if some.is_empty() {
            break;
        }
        pieced.extend(some);
        at = next;
    }
    assert_eq!(pieced, all);
}

/// Sherlock-Holo/fuse3#12, tavianator/bfs#67: entries left behind by `rm -rf` because offsets shifted.
#[test]
fn removing_between_reads_loses_and_repeats_nothing() {
    let fs = Fs::new();
    let d = fs.dir("d");
    for i in 0..50 {
        fs.make(FileKind::File, d, &format!("f{i}"));
    }
    let (mut seen, mut at, end) = (Vec::new(), 0, fs.end(d));
    loop {
        let (some, next) = fs.some(d, at, end, 3);
        if some.is_empty() {
            break;
        }
        for name in some.iter().filter(|n| n.starts_with('f')) {
            fs.change(|tx| crate::fs::link::unlink(tx, d, name.as_bytes())).unwrap();
            seen.push(name.clone());
        }
        at = next;
    }
    assert_eq!(seen, (0..50).map(|i| format!("f{i}")).collect::<Vec<_>>());
    assert_eq!(fs.all(d), [".", ".."]);
}

#[test]
fn renaming_what_is_read_comes_to_an_end() {
    let fs = Fs::new();
    let d = fs.dir("d");
    for i in 0..20 {
        fs.make(FileKind::File, d, &format!("f{i}"));
    }
    let (mut steps, mut at, end) = (0, 0, fs.end(d));
    loop {
        let (some, next) = fs.some(d, at, end, 4);
        if some.is_empty() {
            break;
        }
        for name in some.iter().filter(|n| !n.starts_with('.')) {
            let to = format!("{name}.x");
            let places = (Place { dir: d, name: name.as_bytes() }, Place { dir: d, name: to.as_bytes() });
            fs.change(|tx| rename(tx, ROOT, places.0, places.1, 0)).unwrap();
            steps += 1;
        }
        at = next;
        assert!(steps <= 20, "a stream must not run after the names it makes");
    }
    assert_eq!(steps, 20);
    assert_eq!(fs.all(d).len(), 22, "a new stream sees them");
}

#[test]
fn the_root_is_its_own_parent_and_a_removed_directory_is_empty() {
    let fs = Fs::new();
    let d = fs.dir("d");
    let dots = |d| {
        fs.see(|v| {
            let mut inos = Vec::new();
            dir::read(v, d, 0, u64::MAX, &mut |item| {
                inos.push(item.ino);
                inos.len() < 2
            })?;
            Ok(inos)
        })
        .unwrap()
    };
    assert_eq!(dots(ROOT_INO), [ROOT_INO, ROOT_INO]);
    assert_eq!(dots(d), [d, ROOT_INO]);
    fs.change(|tx| crate::fs::link::rmdir(tx, ROOT_INO, b"d")).unwrap();
    assert_eq!(dots(d), []);
}
