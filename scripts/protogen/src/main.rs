//! Turns a `.proto` file into Rust: `protogen PROTO OUT_DIR [--default-stubs]`. No protoc is needed.
//!
//! With `--default-stubs` calls that a server does not implement answer UNIMPLEMENTED: for a protocol of which only a part is served.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(proto), Some(out)) = (args.next(), args.next()) else { return Err("usage: protogen PROTO OUT_DIR [--default-stubs]".into()) };
    let parent = Path::new(&proto).parent().ok_or("the file has no directory")?;
    let descriptors = protox::compile([Path::new(&proto)], [parent])?;
    std::fs::create_dir_all(&out)?;
    let stubs = args.next().is_some_and(|a| a == "--default-stubs");
    tonic_prost_build::configure().out_dir(&out).generate_default_stubs(stubs).compile_fds(descriptors)?;
    Ok(())
}
