//! Trees to publish and to unpack, and what is in them.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use hiloop_types::{Error, Result};

fn io_at<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|e| Error::io(path.display(), &e))
}

/// Makes a directory and its parents.
///
/// # Errors
/// What the operating system says, with the path.
pub fn make_directory(dir: &Path) -> Result<()> {
    io_at(dir, fs::create_dir_all(dir))
}

/// Where a file of a [`tiny`] tree is.
pub fn tiny_path(dir: u32, file: u32) -> String {
    format!("d{dir:04}/f{file:04}")
}

/// What a file of a [`tiny`] tree holds.
pub fn tiny_content(dir: u32, file: u32) -> String {
    format!("file {file} of directory {dir}\n")
}

/// `dirs` directories of `files` files of some thirty bytes, all different.
///
/// # Errors
/// What the operating system says, with the path.
pub fn tiny(at: &Path, dirs: u32, files: u32) -> Result<()> {
    for d in 0..dirs {
        make_directory(&at.join(format!("d{d:04}")))?;
        for f in 0..files {
            let path = at.join(tiny_path(d, f));
            io_at(&path, fs::write(&path, tiny_content(d, f)))?;
        }
    }
    Ok(())
}

/// `count` files like those of a source tree: 40 in a directory, 200 bytes to 40 KiB of text that compresses as such, all different.
///
/// # Errors
/// What the operating system says, with the path.
pub fn sources(at: &Path, count: u32) -> Result<()> {
    const WORDS: [&str; 16] =
        ["let ", "self.", "chunk", "extent", "(", ")", ";\n", "    ", "match ", "=> ", "head", "pack", "Ok", "fn ", "::", " = "];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        // xorshift64: the same trees in every run.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for n in 0..count {
        let dir = at.join(format!("crate-{}/src-{}", n / 400, n / 40));
        if n.is_multiple_of(40) {
            make_directory(&dir)?;
        }
        // Most are small, one in eight is large.
        let size = if n.is_multiple_of(8) { 8_000 + next() % 32_000 } else { 200 + next() % 5_000 };
        let mut text = format!("// source {n}\n");
        while (text.len() as u64) < size {
            let r = next();
            (0..12).for_each(|k| text.push_str(WORDS[(r >> (4 * k)) as usize & 15]));
            text.push_str(&format!("{:x}\n", r >> 48));
        }
        let path = dir.join(format!("module_{n}.rs"));
        io_at(&path, fs::write(&path, text))?;
    }
    Ok(())
}

/// Files and directories below `at`, sorted by path.
///
/// # Errors
/// What the operating system says, with the path.
pub fn walk(at: &Path) -> Result<Vec<(PathBuf, fs::Metadata)>> {
    let mut found = Vec::new();
    let mut todo = vec![at.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in io_at(&dir, fs::read_dir(&dir))? {
            let path = io_at(&dir, entry)?.path();
            let meta = io_at(&path, fs::symlink_metadata(&path))?;
            if meta.is_dir() {
                todo.push(path.clone());
            }
            found.push((path, meta));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

/// What a tree holds: paths, types, modes, contents, and times of files apart (bindfs 1.14 does not keep those that tar sets).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Regular files.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Of everything but times.
    pub hash: u64,
    /// Of the modification times of files, in nanoseconds.
    pub times: u64,
}

/// Reads a whole tree.
///
/// # Errors
/// What the operating system says, with the path.
pub fn digest(at: &Path) -> Result<Digest> {
    let (mut hasher, mut times) = (DefaultHasher::new(), DefaultHasher::new());
    let mut digest = Digest { files: 0, bytes: 0, hash: 0, times: 0 };
    for (path, meta) in walk(at)? {
        path.strip_prefix(at).unwrap_or(&path).hash(&mut hasher);
        meta.permissions().mode().hash(&mut hasher);
        if meta.is_file() {
            let content = io_at(&path, fs::read(&path))?;
            (meta.mtime(), meta.mtime_nsec()).hash(&mut times);
            content.hash(&mut hasher);
            digest.files += 1;
            digest.bytes += content.len() as u64;
        }
    }
    digest.hash = hasher.finish();
    digest.times = times.finish();
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_changes_the_digest_and_nothing_else_does() {
        let dir = std::env::temp_dir().join(format!("hiloop-bench-tree-{}", std::process::id()));
        tiny(&dir, 2, 3).unwrap();
        let before = digest(&dir).unwrap();
        assert_eq!(before.files, 6);
        assert_eq!(before, digest(&dir).unwrap());
        let path = dir.join(tiny_path(1, 2));
        let (mtime, mut content) = (fs::metadata(&path).unwrap().modified().unwrap(), fs::read(&path).unwrap());
        content[0] ^= 1;
        fs::write(&path, content).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(mtime).unwrap();
        let after = digest(&dir).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!((before.files, before.bytes), (after.files, after.bytes));
        assert_ne!(before.hash, after.hash);
    }
}
