//! Turns a `.proto` file into Rust: `protogen PROTO OUT_DIR`. No protoc is needed.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(proto), Some(out)) = (args.next(), args.next()) else { return Err("usage: protogen PROTO OUT_DIR".into()) };
    let parent = Path::new(&proto).parent().ok_or("the file has no directory")?;
    let descriptors = protox::compile([Path::new(&proto)], [parent])?;
    std::fs::create_dir_all(&out)?;
    tonic_prost_build::configure().out_dir(&out).compile_fds(descriptors)?;
    Ok(())
}
