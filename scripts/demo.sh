#!/usr/bin/env bash
# ./dev run and ./dev stop: the main job on a real tree, with figures; leaves a working mount.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

DEMO="$CACHE/demo"
SW="$HILOOP_BIN/sandbox-workspace"
STORE="file://$DEMO/store"
MNT="$DEMO/workspace"
FORKS=(fork-1 fork-2 fork-3)

stop() {
    local at pids=() pid
    [ -d "$DEMO" ] || return 0
    for at in "$MNT" "${FORKS[@]/#/$DEMO/}"; do
        mountpoint -q "$at" 2>/dev/null || continue
        pid=$("$SW" status --json "$at" 2>/dev/null | jq -r '.pid // empty' || true)
        [ -z "$pid" ] || pids+=("$pid")
        "$SW" unmount --timeout 10s "$at" >/dev/null || umount -l "$at" 2>/dev/null || fusermount3 -uz "$at" || true
    done
    # The daemon ends by itself once its last workspace is gone; it must not write into what is removed below.
    for pid in "${pids[@]}"; do
        for _ in $(seq 100); do
            [[ "$({ tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null)" == *"$DEMO"* ]] || continue 2
            sleep 0.1
        done
        kill -TERM "$pid" 2>/dev/null || true
        sleep 1
    done
    rm -rf --one-file-system "$DEMO"
}

step() { if [ -t 1 ]; then printf '\n\033[1m%s\033[0m\n' "$*"; else printf '\n# %s\n' "$*"; fi; }
show() {
    printf '$ sandbox-workspace %s\n' "$*"
    "$SW" "$@"
}

run() {
    local source=${1:-} id=checkout f
    [ -z "$source" ] || source=$(cd "$source" && pwd)
    stop
    mkdir -p "$DEMO/store" "$MNT" "${FORKS[@]/#/$DEMO/}"
    if [ -z "$source" ]; then
        # What git tracks, as it stands in the work tree.
        source="$DEMO/checkout"
        mkdir "$source"
        (cd "$ROOT" && git ls-files -z | rsync -a --from0 --files-from=- --ignore-missing-args ./ "$source/")
    else
        id=tree
    fi

    step "Publish $source as the base $id"
    show publish-base --store "$STORE" --build-id "$id" "$source"
    step "Mount a workspace from it"
    show mount --store "$STORE" --workspace demo --base "$id" --cache-dir "$DEMO/cache" "$MNT"
    printf '%s entries, the first of them:\n' "$(find "$MNT" -mindepth 1 | wc -l)"
    find "$MNT" -mindepth 1 -maxdepth 1 -printf '  %f\n' | sort | sed -n 1,8p
    step "Write"
    printf 'written before the fork\n' >"$MNT/note.txt"
    head -c 1000000 /dev/urandom >"$MNT/data.bin"
    printf 'note.txt and 1 MB of data.bin\n'
    step "Snapshot, and wait until it is in the store"
    show snapshot --wait --name before-forks "$MNT"
    step "Fork it three times"
    show fork --store "$STORE" snapshot:before-forks "${FORKS[@]}"
    for f in "${FORKS[@]}"; do
        "$SW" mount --store "$STORE" --workspace "$f" --cache-dir "$DEMO/cache" "$DEMO/$f" >/dev/null
        printf 'changed by %s\n' "$f" >"$DEMO/$f/note.txt"
    done
    step "Each fork has its own change, the workspace has none of them"
    for f in "$MNT" "${FORKS[@]/#/$DEMO/}"; do
        printf '%-12s note.txt: %-26s data.bin: %s\n' "$(basename "$f")" "$(cat "$f/note.txt")" "$(sha256sum <"$f/data.bin" | cut -c1-12)"
    done
    for f in "${FORKS[@]}"; do
        [ "$(cat "$DEMO/$f/note.txt")" = "changed by $f" ] || die "$f lost its change"
        cmp -s "$MNT/data.bin" "$DEMO/$f/data.bin" || die "$f has other data than its parent"
        "$SW" unmount "$DEMO/$f" >/dev/null
    done
    [ "$(cat "$MNT/note.txt")" = "written before the fork" ] || die "a fork changed its parent"
    step "Status"
    show status "$MNT"

    cat <<TEXT

The workspace is mounted at $MNT. Go on with

  export PATH=$HILOOP_BIN:\$PATH HILOOP_STORE='$STORE'
  sandbox-workspace status $MNT
  sandbox-workspace list workspaces
  sandbox-workspace mount --workspace fork-1 --cache-dir $DEMO/cache $DEMO/fork-1
  sandbox-workspace lineage workspace:fork-1
  sandbox-workspace --help

and clean up with ./dev stop
TEXT
}

case ${1:-} in
    run) run "${2:-}" ;;
    stop) stop ;;
    *) die "usage: demo.sh run [PATH] | stop" ;;
esac
