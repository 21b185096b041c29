#!/usr/bin/env bash
# Installs what building and testing need. Each tool is pinned and noted in a stamp file; a warm run asks no registry.
# Usage: setup.sh [faults]; with `faults` also what only that stage needs: Java, Maven and S3Mock.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./lib.sh

PJDFSTEST=0.2.2
FSX=0.3.2
VERSITYGW=v1.8.0
CSI_SANITY=v5.5.0
S3MOCK=4.11.0
S3MOCK_SHA256=30916126e4cf559ca3fd25a1ff481eb64f7bfd2e05eb1ea83600999774f63f84

exec 9>"$CACHE/setup.lock"
flock 9

packages() {
    local wanted=(build-essential pkg-config git fuse3 attr acl libacl1-dev sqlite3 rsync jq socat curl openssl e2fsprogs) missing=() p
    # RocksDB's bindings need some libclang; any version will do.
    compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null || missing+=(libclang-dev)
    for p in "${wanted[@]}"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
    done
    command -v npm >/dev/null || missing+=(npm)
    command -v go >/dev/null || missing+=(golang-go)
    if [ "$for" = faults ] && ! [ -f "$HILOOP_S3MOCK" ]; then command -v mvn >/dev/null || missing+=(maven); fi
    if [ "$for" = faults ]; then command -v java >/dev/null || missing+=(default-jre-headless); fi
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "this system has no apt-get; install these yourself: ${missing[*]}"
    local as=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "run this once as root, or install: ${missing[*]}"
        as=(sudo)
    fi
    say "installing ${missing[*]}"
    "${as[@]}" apt-get update -qq >&2
    "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >&2
}

# tool NAME VERSION COMMAND…: runs COMMAND unless this version was installed before.
tool() {
    local name=$1 version=$2
    shift 2
    if [ -x "$CACHE/bin/$name" ] && [ "$(cat "$CACHE/stamps/$name" 2>/dev/null)" = "$version" ]; then
        return 0
    fi
    say "installing $name $version"
    "$@" >&2
    printf '%s\n' "$version" >"$CACHE/stamps/$name"
}

# Tools that are built with cargo get a target directory of their own: their dependencies are not ours.
cargo_tool() { CARGO_TARGET_DIR="$CACHE/tools-target" cargo install --quiet --force --locked --root "$CACHE" "$1@$2"; }

go_tool() {
    local minor
    minor=$(go env GOVERSION | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
    # Since 1.21 Go fetches the toolchain that a module asks for.
    [ "${minor:-0}" -ge 21 ] || die "$(go version) cannot build versitygw and csi-sanity (tests): install Go 1.21 or later"
    GOBIN="$CACHE/bin" go install "$1@$2"
}

# The S3 server that loses races, one jar with all that it needs.
s3mock() {
    local into="$CACHE/tools-target/s3mock"
    mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy -Dartifact="com.adobe.testing:s3mock:$1:jar:exec" \
        -Dmdep.stripVersion=true -DoutputDirectory="$into"
    printf '%s  %s\n' "$S3MOCK_SHA256" "$into/s3mock-exec.jar" | sha256sum --check --quiet || die "S3Mock $1 is not what it was when it was pinned"
    mv "$into/s3mock-exec.jar" "$HILOOP_S3MOCK"
    # `tool` asks for a program.
    chmod 0755 "$HILOOP_S3MOCK"
}

for=${1:-}
command -v cargo >/dev/null || die "cargo is missing: install Rust 1.95 or later"
cargo fmt --version >/dev/null 2>&1 || die "rustfmt is missing: rustup component add rustfmt"
cargo clippy --version >/dev/null 2>&1 || die "clippy is missing: rustup component add clippy"
packages
tool pjdfstest "$PJDFSTEST" cargo_tool pjdfstest "$PJDFSTEST"
tool fsx "$FSX" cargo_tool fsx "$FSX"
tool csi-sanity "$CSI_SANITY" go_tool github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity "$CSI_SANITY"
tool versitygw "$VERSITYGW" go_tool github.com/versity/versitygw/cmd/versitygw "$VERSITYGW"
[ "$for" != faults ] || tool s3mock.jar "$S3MOCK" s3mock "$S3MOCK"
[ -c /dev/fuse ] || die "/dev/fuse is missing: load the fuse module (modprobe fuse)"
say "set-up is complete"
