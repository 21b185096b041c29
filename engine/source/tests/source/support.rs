//! A sink that keeps everything, a view of a tree that can be compared, and raw tar headers.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use hiloop_source::{Content, ContentSink, Shape, SourceInode, SourceLimits, SourceSpec, SourceTree};
use hiloop_types::{Error, Result, ResultExt};
use tempfile::TempDir;

#[derive(Default)]
pub struct Recorder {
    pub paths: Vec<PathBuf>,
    pub contents: Vec<Vec<u8>>,
}

impl ContentSink for Recorder {
    fn content(&mut self, path: &Path, shape: Shape<'_>, reader: &mut dyn Read) -> Result<Content> {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).at("the test's sink")?;
        if let Some(ranges) = shape.data {
            assert!(ranges.windows(2).all(|w| w[0].offset + w[0].length <= w[1].offset));
            assert!(ranges.last().is_none_or(|r| r.length > 0 && r.offset + r.length <= shape.size));
        }
        let content = Content { handle: self.contents.len() as u64, size: bytes.len() as u64 };
        self.paths.push(path.to_owned());
        self.contents.push(bytes);
        Ok(content)
    }
}

pub struct Outcome {
    pub tree: SourceTree,
    pub sink: Recorder,
}

pub fn read_with(spec: &SourceSpec, limits: &SourceLimits) -> Result<Outcome> {
    let mut sink = Recorder::default();
    let mut entries = 0;
    let tree = hiloop_source::read(spec, &mut sink, limits, &mut |progress| entries = progress.entries)?;
    assert!(entries as usize >= tree.nodes.len() - 1, "progress saw {entries} entries of {}", tree.nodes.len());
    check(&tree, &sink);
    Ok(Outcome { tree, sink })
}

pub fn read(spec: &SourceSpec) -> Result<Outcome> {
    read_with(spec, &SourceLimits::default())
}

/// What holds for every tree.
fn check(tree: &SourceTree, sink: &Recorder) {
    let mut links = vec![0; tree.inodes.len()];
    let mut first = 0;
    for (index, node) in tree.nodes.iter().enumerate() {
        assert!(index == 0 || node.parent < index);
        assert!(node.inode <= first, "inodes stand in the order of their first node");
        first = first.max(node.inode + 1);
        links[node.inode] += 1;
        let children = tree.children(index);
        assert!(children.clone().all(|child| tree.nodes[child].parent == index));
        assert!(tree.nodes[children.clone()].windows(2).all(|w| w[0].name < w[1].name), "sorted by name");
        let inode = tree.inode(index);
        let directory = inode.kind == hiloop_source::SourceKind::Directory;
        assert!(directory || children.is_empty());
        if directory {
            let below = children.filter(|c| tree.inode(*c).kind == hiloop_source::SourceKind::Directory).count();
            assert_eq!(inode.nlink as usize, 2 + below);
        }
        assert_eq!(inode.content.is_some(), inode.kind == hiloop_source::SourceKind::File);
        if let Some(content) = inode.content {
            assert_eq!(content.size as usize, sink.contents[content.handle as usize].len());
            assert_eq!(content.size, inode.data.as_ref().map_or(inode.size, |d| d.iter().map(|r| r.length).sum()));
        }
    }
    for (inode, links) in tree.inodes.iter().zip(links) {
        assert!(inode.kind == hiloop_source::SourceKind::Directory && links == 1 || inode.nlink == links);
    }
}

impl Outcome {
    pub fn node(&self, path: &str) -> Option<usize> {
        (0..self.tree.nodes.len()).find(|node| self.tree.path(*node) == path.as_bytes())
    }

    pub fn inode(&self, path: &str) -> &SourceInode {
        self.tree.inode(self.node(path).unwrap_or_else(|| panic!("{path} is not in {:?}", self.paths())))
    }

    pub fn paths(&self) -> Vec<String> {
        (0..self.tree.nodes.len()).map(|node| String::from_utf8_lossy(&self.tree.path(node)).into_owned()).collect()
    }

    /// Bytes of a file, holes filled with zeros.
    pub fn bytes(&self, inode: &SourceInode) -> Vec<u8> {
        let stored = &self.sink.contents[inode.content.unwrap().handle as usize];
        let Some(ranges) = &inode.data else { return stored.clone() };
        let mut bytes = vec![0; inode.size as usize];
        let mut at = 0;
        for range in ranges {
            let length = range.length as usize;
            bytes[range.offset as usize..][..length].copy_from_slice(&stored[at..at + length]);
            at += length;
        }
        bytes
    }

    pub fn text(&self, path: &str) -> String {
        String::from_utf8(self.bytes(self.inode(path))).unwrap()
    }

    /// The tree with bytes in place of handles: equal for equal trees, whatever order their contents came in.
    pub fn view(&self) -> Vec<(String, usize, SourceInode, Vec<u8>)> {
        let nodes = 0..self.tree.nodes.len();
        nodes
            .map(|node| {
                let mut inode = self.tree.inode(node).clone();
                let bytes = if inode.content.is_some() { self.bytes(&inode) } else { Vec::new() };
                (inode.content, inode.data) = (None, None);
                (self.tree.path(node).escape_ascii().to_string(), self.tree.nodes[node].inode, inode, bytes)
            })
            .collect()
    }
}

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// A raw header with a right checksum.
pub fn header(name: &[u8], flag: u8, size: u64, link: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name);
    block[100..107].copy_from_slice(b"0000644");
    block[108..115].copy_from_slice(b"0000000");
    block[116..123].copy_from_slice(b"0000000");
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[136..147].copy_from_slice(b"00000000007");
    block[156] = flag;
    block[157..157 + link.len()].copy_from_slice(link);
    block[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut block);
    block
}

pub fn seal(block: &mut [u8]) {
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block[..512].iter().map(|b| u32::from(*b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

pub fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(512), 0);
    padded
}

pub fn file(name: &str, bytes: &[u8]) -> Vec<u8> {
    [header(name.as_bytes(), b'0', bytes.len() as u64, b""), padded(bytes)].concat()
}

pub fn directory(name: &str) -> Vec<u8> {
    header(name.as_bytes(), b'5', 0, b"")
}

pub fn symlink(name: &str, target: &str) -> Vec<u8> {
    header(name.as_bytes(), b'2', 0, target.as_bytes())
}

pub fn hard_link(name: &str, target: &str) -> Vec<u8> {
    header(name.as_bytes(), b'1', 0, target.as_bytes())
}

pub fn pax(flag: u8, records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let length = (rest..).find(|total| *total == rest + total.to_string().len()).unwrap();
        body.extend_from_slice(format!("{length} {key}=").as_bytes());
        body.extend_from_slice(value);
        body.push(b'\n');
    }
    [header(b"pax", flag, body.len() as u64, b""), padded(&body)].concat()
}

/// Entries and the end marker.
pub fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    [entries.concat(), vec![0; 1024]].concat()
}

pub fn read_bytes(bytes: &[u8], limits: &SourceLimits) -> Result<Outcome> {
    let home = TempDir::new().unwrap();
    let path = home.path().join("archive");
    std::fs::write(&path, bytes).unwrap();
    read_with(&SourceSpec::Tar(path), limits)
}

pub fn read_entries(entries: &[Vec<u8>]) -> Result<Outcome> {
    read_bytes(&archive(entries), &SourceLimits::default())
}

pub fn refused(result: Result<Outcome>) -> Error {
    match result {
        Ok(outcome) => panic!("accepted: {:?}", outcome.paths()),
        Err(error) => error,
    }
}

/// An archive made by GNU tar.
pub fn gnu_tar(root: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new("tar").arg("-C").arg(root).args(arguments).args(["-cf", "-", "."]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    flate2::read::GzEncoder::new(bytes, flate2::Compression::fast()).read_to_end(&mut packed).unwrap();
    packed
}

pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 1).unwrap()
}
