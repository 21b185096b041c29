#!/usr/bin/env bash
# ./dev bench quick: figures of the optimised binaries, as ratios in one run. Further arguments go to `hiloop-bench quick`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./lib.sh

kind=${1:-}
[ "$kind" = quick ] || die "usage: ./dev bench quick [--json FILE] [--rounds N] [--files N]"
shift

# The reference that only benches need; setup.sh has installed the rest.
if ! command -v bindfs >/dev/null; then
    command -v apt-get >/dev/null || die "install bindfs: the figures are ratios to it"
    as=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "run this once as root, or install bindfs"
        as=(sudo)
    fi
    say "installing bindfs"
    "${as[@]}" apt-get update -qq >&2
    "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends bindfs >&2
fi

exec "$HILOOP_BIN/hiloop-bench" quick --binary "$HILOOP_BIN/sandbox-workspace" --scratch "$SCRATCH" "$@"
