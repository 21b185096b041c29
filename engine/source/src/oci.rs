//! An OCI image layout as the source: `index.json`, a manifest for this machine's platform, its layers in order.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use hiloop_types::{Error, Result, ResultExt};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use crate::builder::Builder;
use crate::limits::{DOCUMENT_MAX, INDEXES_MAX, Meter, beyond};
use crate::path::lift;
use crate::sink::ContentSink;
use crate::tar::{Flavour, unpack_stream};

const INDEXES: [&str; 2] = ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
const MANIFESTS: [&str; 2] = ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
/// Packings are told by magic bytes; the type only has to be one of a layer.
const LAYERS: [&str; 8] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
];
/// Candidates listed in the error of an ambiguous layout.
const LISTED_MAX: usize = 16;

#[derive(Deserialize)]
struct Layout {
    #[serde(rename = "imageLayoutVersion")]
    version: String,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Descriptor>,
}

#[derive(Clone, Deserialize)]
struct Descriptor {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Deserialize, PartialEq, Eq)]
struct Platform {
    os: String,
    architecture: String,
}

impl Descriptor {
    /// Digest, platform and tag, for people.
    fn shown(&self) -> String {
        let platform = self.platform.as_ref().map_or_else(|| "no platform".to_owned(), |p| format!("{}/{}", p.os, p.architecture));
        let tag = self.annotations.get("org.opencontainers.image.ref.name").map(|tag| format!(" {tag:?}")).unwrap_or_default();
        format!("{} ({platform}{tag})", self.digest.escape_debug())
    }
}

/// Applies all layers of the image in the layout at `root`.
pub(crate) fn unpack(root: &Path, builder: &mut Builder, sink: &mut dyn ContentSink, meter: &mut Meter<'_>) -> Result<()> {
    let layout: Layout = parse(&document(&root.join("oci-layout"))?).at("oci-layout")?;
    if !layout.version.starts_with("1.") {
        return Err(Error::invalid(format!("image layout version {:?}, 1.x is read", layout.version)).at("oci-layout"));
    }
    let index: Index = parse(&document(&root.join("index.json"))?).at("index.json")?;
    let chosen = choose(candidates(root, index)?)?;
    let manifest: Manifest = parse(&blob_document(root, &chosen)?).at(&chosen.digest)?;
    if let Some(odd) = manifest.layers.iter().find(|layer| !LAYERS.contains(&layer.media_type.as_str())) {
        return Err(
            Error::invalid(format!("a layer of type {:?} is no tar, tar+gzip or tar+zstd", odd.media_type)).at(odd.digest.escape_debug())
        );
    }
    for layer in &manifest.layers {
        builder.next_layer();
        apply(root, layer, builder, sink, meter).at(layer.digest.escape_debug())?;
    }
    Ok(())
}

fn apply(root: &Path, layer: &Descriptor, builder: &mut Builder, sink: &mut dyn ContentSink, meter: &mut Meter<'_>) -> Result<()> {
    let mut blob = Blob::open(root, layer)?;
    unpack_stream(Box::new(&mut blob), Flavour::Layer, builder, sink, meter)?;
    blob.verify()
}

/// All image manifests that an index leads to, each once; attestations and other artifacts left out.
fn candidates(root: &Path, index: Index) -> Result<Vec<Descriptor>> {
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    let mut queue = index.manifests;
    queue.reverse();
    let mut indexes = 0;
    while let Some(descriptor) = queue.pop() {
        if !seen.insert(descriptor.digest.clone()) || descriptor.annotations.contains_key("vnd.docker.reference.type") {
            continue;
        }
        if MANIFESTS.contains(&descriptor.media_type.as_str()) {
            found.push(descriptor);
        } else if INDEXES.contains(&descriptor.media_type.as_str()) {
            indexes += 1;
            if indexes > INDEXES_MAX {
                return Err(beyond("nested indexes", INDEXES_MAX as u64, "indexes"));
            }
            let nested: Index = parse(&blob_document(root, &descriptor)?).at(descriptor.digest.escape_debug())?;
            // What an index says about platform and tag holds for those of its manifests that say nothing.
            queue.extend(nested.manifests.into_iter().rev().map(|mut inner| {
                inner.platform = inner.platform.or_else(|| descriptor.platform.clone());
                for (key, value) in &descriptor.annotations {
                    inner.annotations.entry(key.clone()).or_insert_with(|| value.clone());
                }
                inner
            }));
        }
    }
    Ok(found)
}

/// The only manifest, or the only one for this machine.
fn choose(mut found: Vec<Descriptor>) -> Result<Descriptor> {
    let here = Platform { os: "linux".to_owned(), architecture: architecture().to_owned() };
    if found.len() > 1 {
        let all = listed(&found);
        found.retain(|manifest| manifest.platform.as_ref() == Some(&here));
        if found.is_empty() {
            return Err(Error::invalid(format!("none of the layout's images is for linux/{}: {all}", here.architecture))
                .hint("export the image for this platform"));
        }
    }
    match found.pop() {
        Some(only) if found.is_empty() => Ok(only),
        Some(last) => {
            found.push(last);
            Err(Error::invalid(format!("the layout holds {} images for this platform: {}", found.len(), listed(&found)))
                .hint("export one image into a layout of its own"))
        }
        None => Err(Error::invalid("the layout's index names no image").at("index.json")),
    }
}

fn listed(found: &[Descriptor]) -> String {
    let shown: Vec<String> = found.iter().take(LISTED_MAX).map(Descriptor::shown).collect();
    let more = if found.len() > LISTED_MAX { format!(", and {} more", found.len() - LISTED_MAX) } else { String::new() };
    shown.join(", ") + &more
}

/// This machine's architecture in the words of images.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| Error::corrupt(format!("not the JSON that it should be: {e}")))
}

/// A document that no digest names.
fn document(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path).at(path.display())?;
    read_document(file).at(path.display())
}

/// A document, checked against its digest before it is parsed.
fn blob_document(root: &Path, descriptor: &Descriptor) -> Result<Vec<u8>> {
    let read = || {
        let mut blob = Blob::open(root, descriptor)?;
        let bytes = read_document(&mut blob)?;
        blob.verify().map(|()| bytes)
    };
    read().at(descriptor.digest.escape_debug())
}

fn read_document(reader: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(DOCUMENT_MAX + 1).read_to_end(&mut bytes).map_err(|e| lift(&e))?;
    if bytes.len() as u64 > DOCUMENT_MAX {
        return Err(beyond("image document", DOCUMENT_MAX, "bytes"));
    }
    Ok(bytes)
}

/// A blob that is hashed while it is read.
struct Blob {
    file: File,
    hasher: Sha256,
    digest: Vec<u8>,
    size: u64,
    read: u64,
}

impl Blob {
    fn open(root: &Path, descriptor: &Descriptor) -> Result<Self> {
        let digest = descriptor.digest.strip_prefix("sha256:").and_then(unhex);
        let digest = digest.ok_or_else(|| Error::invalid("the digest is not `sha256:` and 64 lower-case hex digits"))?;
        let path: PathBuf = root.join("blobs").join("sha256").join(&descriptor.digest["sha256:".len()..]);
        let file = File::open(&path).map_err(|e| Error::io("open", &e).hint("the layout is not complete"))?;
        let stat = file.metadata().at("stat")?;
        if !stat.is_file() {
            return Err(Error::invalid("the blob is not a file"));
        }
        if stat.len() != descriptor.size {
            return Err(Error::corrupt(format!("the blob has {} bytes, its descriptor says {}", stat.len(), descriptor.size)));
        }
        Ok(Self { file, hasher: Sha256::new(), digest, size: descriptor.size, read: 0 })
    }

    /// Reads what a decoder left over and compares.
    fn verify(mut self) -> Result<()> {
        io::copy(&mut self, &mut io::sink()).map_err(|e| lift(&e))?;
        if self.read != self.size || self.hasher.finalize().as_slice() != self.digest {
            return Err(Error::corrupt("the blob's bytes do not have its digest").hint("copy or export the image again"));
        }
        Ok(())
    }
}

impl Read for Blob {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.file.read(buf)?;
        self.hasher.update(&buf[..got]);
        self.read += got as u64;
        Ok(got)
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != 32 || !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
}
