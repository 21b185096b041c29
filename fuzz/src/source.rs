//! Sources of a base: archives and image layouts.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use hiloop_source::{Content, ContentSink, Shape, SourceLimits, SourceSpec, read};
use hiloop_types::{Error, Result, ResultExt};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::memory::bounded;

/// Small, so that an input that passes them shows soon.
fn limits() -> SourceLimits {
    SourceLimits { entries: 1000, bytes: 1 << 20, depth: 64, metadata_bytes: 1 << 20, expansion: 100, expansion_free: 1 << 16 }
}

/// Reads contents to their end and keeps nothing.
struct Gone;

impl ContentSink for Gone {
    fn content(&mut self, _path: &Path, _shape: Shape<'_>, reader: &mut dyn Read) -> Result<Content> {
        let size = io::copy(reader, &mut io::sink()).map_err(|e| Error::corrupt(e.to_string()))?;
        Ok(Content { handle: 0, size })
    }
}

thread_local! {
    static HOME: TempDir = {
        // Memory where there is some: each input is a file.
        let memory = Path::new("/dev/shm");
        let home = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
        home.expect("a directory for inputs can be made")
    };
}

fn read_source(spec: &SourceSpec, bytes: &[u8]) -> bool {
    let limits = limits();
    let tree = bounded(bytes, 1024, || read(spec, &mut Gone, &limits, &mut |_| {}));
    let Ok(tree) = tree else { return false };
    assert!(tree.nodes.len() as u64 <= limits.entries + 1, "more entries than the limit");
    true
}

/// A tar archive: as it comes, and with the checksums of its headers made right.
pub fn tar(bytes: &[u8]) -> bool {
    HOME.with(|home| {
        let path = home.path().join("archive");
        let mut accepted = false;
        for sealed in [false, true] {
            let mut archive = bytes.to_vec();
            if sealed {
                archive.chunks_exact_mut(512).filter(|b| b[257..].starts_with(b"ustar")).for_each(seal);
                if archive == bytes {
                    continue;
                }
            }
            fs::write(&path, &archive).expect("the input can be written");
            accepted |= read_source(&SourceSpec::Tar(path.clone()), bytes);
        }
        accepted
    })
}

fn seal(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// An image layout in which the bytes behind the first one are: the marker file (0), the index (1), the manifest (2), or the layer (3).
pub fn oci_layout(bytes: &[u8]) -> bool {
    let Some((which, part)) = bytes.split_first() else { return false };
    HOME.with(|home| {
        let root = home.path().join("image");
        let layout = || -> Result<()> {
            let layer = if which % 4 == 3 { part } else { &[0; 1024] };
            let layer = blob(&root, layer, "application/vnd.oci.image.layer.v1.tar")?;
            let manifest = format!("{{\"schemaVersion\":2,\"layers\":[{layer}]}}");
            let manifest = if which % 4 == 2 { part } else { manifest.as_bytes() };
            let manifest = blob(&root, manifest, "application/vnd.oci.image.manifest.v1+json")?;
            let index = format!("{{\"schemaVersion\":2,\"manifests\":[{manifest}]}}");
            let index = if which % 4 == 1 { part } else { index.as_bytes() };
            let marker = if which % 4 == 0 { part } else { b"{\"imageLayoutVersion\":\"1.0.0\"}" };
            fs::write(root.join("index.json"), index).at("index.json")?;
            fs::write(root.join("oci-layout"), marker).at("oci-layout")
        };
        layout().expect("the layout can be written");
        let accepted = read_source(&SourceSpec::OciLayout(root.clone()), bytes);
        fs::remove_dir_all(&root).expect("the layout can be removed");
        accepted
    })
}

/// Writes a blob; its descriptor.
fn blob(root: &Path, bytes: &[u8], media_type: &str) -> Result<String> {
    let digest: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
    let dir = root.join("blobs/sha256");
    fs::create_dir_all(&dir).at(dir.display())?;
    fs::write(dir.join(&digest), bytes).at(&digest)?;
    Ok(format!("{{\"mediaType\":\"{media_type}\",\"digest\":\"sha256:{digest}\",\"size\":{}}}", bytes.len()))
}
