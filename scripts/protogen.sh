#!/usr/bin/env bash
# Makes the Rust of our gRPC protocols from their .proto files, or with --check says whether what is checked in is what they give.
# The generator stands outside of the workspace: prost-build and protox share crates with RocksDB's bindings, and in the workspace they
# would change their features and so compile RocksDB again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./lib.sh
cd "$ROOT"

[ $# -eq 0 ] || [ "$*" = --check ] || die "usage: protogen.sh [--check]"
target="$CACHE/tools-target"
CARGO_TARGET_DIR="$target" cargo build --quiet --locked --manifest-path scripts/protogen/Cargo.toml
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# Folder of the crate, .proto file, options.
while read -r crate proto options; do
    # shellcheck disable=SC2086
    "$target/debug/protogen" "$crate/proto/$proto" "$out/$crate" $options
    if [ $# -gt 0 ]; then
        diff -ru "$crate/src/generated" "$out/$crate" >&2 || die "$crate/src/generated is not what $crate/proto/$proto gives: run scripts/protogen.sh"
    else
        rm -rf "$crate/src/generated"
        cp -r "$out/$crate" "$crate/src/generated"
    fi
done <<'TABLE'
fusefs/control control.proto
csi-node csi.proto --default-stubs
TABLE
