# shellcheck shell=bash
# Sourced by the other scripts: where things are, and how to say things.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${HILOOP_BUILD_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/hiloop}
mkdir -p "$CACHE/bin" "$CACHE/stamps" "$CACHE/logs"
export CARGO_TARGET_DIR="$CACHE/target"
# The one build profile of the workspace is `dev` (optimised, see Cargo.toml), so that RocksDB is compiled once.
HILOOP_BIN="$CARGO_TARGET_DIR/debug"
export HILOOP_VERSITYGW="$CACHE/bin/versitygw"
HILOOP_S3MOCK="$CACHE/bin/s3mock.jar"
export PATH="$CACHE/bin:$PATH"
[ -x "$(command -v go || true)" ] || [ ! -x /usr/local/go/bin/go ] || PATH="$PATH:/usr/local/go/bin"
# Scratch data must lie on a real disk: /tmp may be memory.
SCRATCH=${HILOOP_TEST_DIR:-/var/tmp}

say() { printf '== %s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Every build selects the whole workspace: a narrower selection would resolve other features and compile dependencies again.
build_binaries() { (cd "$ROOT" && cargo build --workspace --bins >&2); }

# Seconds as 1m02s.
spell() { printf '%dm%02ds' $(($1 / 60)) $(($1 % 60)); }
