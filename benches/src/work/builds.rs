//! Builds: `npm ci` from packed modules and `cargo build` of a line of crates, both without a network and from warm caches.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use hiloop_types::{Error, Result};

use super::go::at;
use crate::run::{run, run_within};
use crate::tree::{make_directory, walk};

pub(super) const PACKAGES: u32 = 5;
pub(super) const MODULES: u32 = 200;
pub(super) const CRATES: u32 = 12;
/// Modules of a crate.
const SOURCES: u32 = 10;

fn write(path: &Path, text: &str) -> Result<()> {
    path.parent().map_or(Ok(()), make_directory)?;
    at(path, fs::write(path, text))
}

/// The sources of a build, which the clock does not count.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    run(Path::new("cp"), &["-R".as_ref(), from.as_os_str(), to.as_os_str()], Path::new("/"), &[], None).map(drop)
}

/// Packages as archives, an application that depends on them, its lock file, and npm's cache.
pub(super) fn make_npm(dir: &Path) -> Result<()> {
    let app = dir.join("app");
    let mut dependencies = Vec::new();
    for p in 0..PACKAGES {
        let (name, package) = (format!("package-{p}"), dir.join(format!("package-{p}")));
        write(&package.join("package.json"), &format!("{{\"name\":\"{name}\",\"version\":\"1.0.0\",\"main\":\"index.js\"}}"))?;
        write(&package.join("index.js"), "module.exports = require('fs').readdirSync(__dirname + '/lib').length;\n")?;
        for m in 0..MODULES {
            let text: String = (0..20 + m % 60).map(|n| format!("exports.value{n} = {};\n", n * m + p)).collect();
            write(&package.join(format!("lib/module-{m}.js")), &text)?;
        }
        make_directory(&app.join("vendor"))?;
        let to = app.join("vendor");
        npm(
            dir,
            &["pack".as_ref(), "--silent".as_ref(), "--pack-destination".as_ref(), to.as_os_str()],
            &package,
            Duration::from_secs(60),
        )?;
        dependencies.push(format!("\"{name}\":\"file:vendor/{name}-1.0.0.tgz\""));
    }
    let text = format!("{{\"name\":\"app\",\"version\":\"1.0.0\",\"dependencies\":{{{}}}}}", dependencies.join(","));
    write(&app.join("package.json"), &text)?;
    npm(dir, &["install", "--package-lock-only", "--silent"].map(AsRef::as_ref), &app, Duration::from_secs(60))
}

fn npm(cache: &Path, args: &[&std::ffi::OsStr], dir: &Path, limit: Duration) -> Result<()> {
    let cache = cache.join("cache").display().to_string();
    let vars = [
        ("npm_config_cache", cache.as_str()),
        ("npm_config_offline", "true"),
        ("npm_config_audit", "false"),
        ("npm_config_fund", "false"),
        ("npm_config_update_notifier", "false"),
        ("npm_config_logs_max", "0"),
    ];
    run_within(limit, Path::new("npm"), args, dir, &vars, None).map(drop)
}

pub(super) fn npm_ci(material: &Path, app: &Path, limit: Duration) -> Result<()> {
    npm(material, &["ci", "--silent"].map(AsRef::as_ref), app, limit)
}

pub(super) fn check_npm(app: &Path) -> Result<()> {
    let sum: Vec<String> = (0..PACKAGES).map(|p| format!("require('package-{p}')")).collect();
    let said = run(Path::new("node"), &["-p", &sum.join("+")], app, &[], None)?;
    let files = walk(&app.join("node_modules"))?.iter().filter(|(_, m)| m.is_file()).count();
    let right = said.trim() == (PACKAGES * MODULES).to_string() && files > (PACKAGES * MODULES) as usize;
    if right { Ok(()) } else { Err(Error::corrupt(format!("npm installed {files} files, node says {said:?}")).at(app.display())) }
}

/// A line of crates, each using the one before, and a program.
pub(super) fn make_cargo(dir: &Path) -> Result<()> {
    let members: Vec<String> = (0..CRATES).map(|c| format!("\"c{c}\"")).collect();
    write(&dir.join("Cargo.toml"), &format!("[workspace]\nresolver = \"3\"\nmembers = [{}]\n", members.join(", ")))?;
    for c in 0..CRATES {
        let mut manifest = format!("[package]\nname = \"c{c}\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\n");
        let mut source = String::new();
        for m in 0..SOURCES {
            let _ = writeln!(source, "pub mod m{m};");
            write(&dir.join(format!("c{c}/src/m{m}.rs")), &format!("pub fn f(x: u64) -> u64 {{ x + {m} }}\n"))?;
        }
        let sum: Vec<String> = (0..SOURCES).map(|m| format!("m{m}::f(0)")).collect();
        let before = if c > 0 { format!("c{}::all() + ", c - 1) } else { String::new() };
        let _ = writeln!(source, "pub fn all() -> u64 {{ {before}{} }}", sum.join(" + "));
        if c > 0 {
            let _ = writeln!(manifest, "c{0} = {{ path = \"../c{0}\" }}", c - 1);
        }
        write(&dir.join(format!("c{c}/Cargo.toml")), &manifest)?;
        write(&dir.join(format!("c{c}/src/lib.rs")), &source)?;
    }
    let last = CRATES - 1;
    write(&dir.join(format!("c{last}/src/main.rs")), &format!("fn main() {{ println!(\"{{}}\", c{last}::all()); }}\n"))
}

pub(super) fn cargo_build(crates: &Path, limit: Duration) -> Result<()> {
    let target = crates.join("target").display().to_string();
    let vars = [("CARGO_TARGET_DIR", target.as_str()), ("CARGO_INCREMENTAL", "1"), ("RUSTFLAGS", "")];
    run_within(limit, Path::new("cargo"), &["build", "--offline", "--quiet"], crates, &vars, None).map(drop)
}

pub(super) fn check_cargo(crates: &Path) -> Result<()> {
    let program = crates.join(format!("target/debug/c{}", CRATES - 1));
    let said = run::<&str>(&program, &[], crates, &[], None)?;
    let wanted = CRATES * SOURCES * (SOURCES - 1) / 2;
    if said.trim() == wanted.to_string() {
        Ok(())
    } else {
        Err(Error::corrupt(format!("the program prints {said:?}")).at(crates.display()))
    }
}
