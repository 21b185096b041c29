# shellcheck shell=bash
# Sourced by suites.sh, acceptance.sh and faults.sh: scratch directory, services with recorded pids, mounts, and named checks.
#
# A check is a function `check_NAME`. It runs in a subshell that stops at its first failing command, prints one line in the words of
# cargo's test runner, and shows its output where it failed. `figure TEXT` adds to that line what was measured.

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Another build of the program may be put to the same checks.
SW=${SANDBOX_WORKSPACE:-$HILOOP_BIN/sandbox-workspace}
RIG="" SUITE="" PASSED=0 FAILED=0

# rig_start SUITE: makes the scratch directory; everything under it is unmounted, stopped and removed at the end.
rig_start() {
    SUITE=$1
    [ "$(id -u)" -eq 0 ] || die "$SUITE needs root: it mounts file systems and switches users"
    [ -x "$SW" ] || die "$SW is missing: ./dev build"
    # Short: the path of a socket has room for 107 bytes, and a suite makes some deep below.
    RIG=$(mktemp -d "$SCRATCH/hiloop.XXXXXX")
    # Some tests switch to other users.
    chmod 0755 "$RIG"
    mkdir "$RIG/logs"
    : >"$RIG/pids"
    trap rig_stop EXIT
    trap 'exit 130' INT TERM
}

rig_stop() {
    rig_unmount_all
    end_recorded
    rig_unmount_all
    if [ "$FAILED" -gt 0 ] && [ -n "${HILOOP_KEEP:-}" ]; then
        say "kept $RIG"
    else
        rm -rf --one-file-system "$RIG"
    fi
}

# Ends every process that was recorded, and forgets them.
end_recorded() {
    local pid target
    while read -r pid target; do
        # Only what is still the program that was recorded: numbers are used again.
        runs "$pid" "$target" || continue
        kill -CONT "$pid" 2>/dev/null || true
        kill -KILL "$pid" 2>/dev/null || true
        await "the end of process $pid" gone "$pid" || true
    done <"$RIG/pids"
    : >"$RIG/pids"
}

rig_unmount_all() {
    local target
    while read -r target; do
        umount -l "$target" 2>/dev/null || true
    done < <(awk -v rig="$RIG/" 'index($5, rig) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
}

figure() { printf '%s; ' "$*" >>"$FIGURES"; }

# fail TEXT: ends a check.
fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}

# run_checks NAME…: runs these checks, or all of $CHECKS; each is followed by `after_check`, where there is one.
run_checks() {
    local name rc log start
    [ $# -gt 0 ] || set -- "${CHECKS[@]}"
    for name in "$@"; do
        [ "$(type -t "check_$name")" = function ] || die "no check $name; there are: ${CHECKS[*]}"
        log="$RIG/logs/$name.log"
        FIGURES="$RIG/logs/$name.figures"
        DIR="$RIG/$name"
        mkdir "$DIR"
        : >"$FIGURES"
        start=$SECONDS
        set +e
        (
            set -eE
            trap 'printf "stopped at %s:%s: %s\n" "${BASH_SOURCE[0]##*/}" "$LINENO" "$BASH_COMMAND" >&2' ERR
            cd "$DIR"
            "check_$name"
            [ "$(type -t after_check)" != function ] || after_check
        ) >"$log" 2>&1
        rc=$?
        set -e
        if [ "$rc" -eq 0 ]; then
            PASSED=$((PASSED + 1))
            printf 'test %s::%s ... ok (%s%ds)\n' "$SUITE" "$name" "$(cat "$FIGURES")" $((SECONDS - start))
        else
            FAILED=$((FAILED + 1))
            printf 'test %s::%s ... FAILED (%s%ds)\n' "$SUITE" "$name" "$(cat "$FIGURES")" $((SECONDS - start))
            tail -n 40 "$log" | sed 's/^/    /'
            daemon_logs
        fi
        release_check
    done
    printf '\ntest result: %s. %d passed; %d failed; 0 ignored\n' "$([ "$FAILED" -eq 0 ] && echo ok || echo FAILED)" "$PASSED" "$FAILED"
    [ "$FAILED" -eq 0 ]
}

daemon_logs() {
    local f
    while read -r f; do
        printf '    -- end of %s\n' "${f#"$DIR"/}"
        tail -n 15 "$f" | cut -c1-400 | sed 's/^/    /'
    done < <(find "$DIR" -xdev -name '*.log' -size +0 -path '*cache*' -not -path '*/rocks*' -not -path '*/mnt*' 2>/dev/null | head -4)
}

# Unmounts what a check left and stops its daemons, so that one check never disturbs the next.
release_check() {
    rig_unmount_all
    end_recorded
    [ "$FAILED" -gt 0 ] && [ -n "${HILOOP_KEEP:-}" ] || rm -rf --one-file-system "$DIR"
}

# await WHAT COMMAND…: until COMMAND succeeds, at most $AWAIT seconds (60).
await() {
    local what=$1 end=$((SECONDS + ${AWAIT:-60}))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || { printf 'waited %s s in vain for %s\n' "${AWAIT:-60}" "$what" >&2; return 1; }
        sleep 0.05
    done
}

# runs PID TEXT: whether that process still is the program with TEXT in its command line.
runs() { [[ "$({ tr '\0' ' ' <"/proc/$1/cmdline"; } 2>/dev/null)" == *"$2"* ]]; }
# A zombie has ended, too: its parent may be busy.
gone() { [ ! -e "/proc/$1" ] || grep -q '^State:\s*Z' "/proc/$1/status" 2>/dev/null; }
is_mounted() { mountpoint -q "$1"; }

# --- the program ---

# sw COMMAND…: runs the program; nothing that we ask takes longer than five minutes.
sw() { timeout -k 5 "${SW_TIMEOUT:-300}" "$SW" "$@"; }

# mount_ws WORKSPACE MOUNTPOINT CACHE [FLAG…]: mounts from $STORE and records the daemon.
mount_ws() {
    local ws=$1 at=$2 cache=$3
    shift 3
    mkdir -p "$at" "$cache"
    sw mount --json --store "$STORE" --workspace "$ws" --cache-dir "$cache" "$@" "$at"
    is_mounted "$at" || fail "mount returned, but $at is no mount point"
    printf '%s %s\n' "$(daemon_pid "$at")" "$cache" >>"$RIG/pids"
}

unmount_ws() { sw unmount "$1"; }

# field TARGET KEY: one value of `status`.
field() { sw status --json "$1" | jq -er ".$2"; }
daemon_pid() { field "$1" pid; }

# kill_daemon MOUNTPOINT: kill -9, and the dead mount is detached.
kill_daemon() {
    local pid
    pid=$(daemon_pid "$1")
    kill -KILL "$pid"
    await "the end of daemon $pid" gone "$pid"
    ! stat -t "$1" 2>/dev/null || fail "$1 still answers after its daemon was killed"
    umount -l "$1"
}

# publish ID SOURCE
publish() { sw publish-base --json --store "$STORE" --build-id "$1" "$2"; }

# An empty base is all that most checks need.
empty_workspace() {
    mkdir -p "$DIR/empty"
    publish empty "$DIR/empty" >/dev/null
    mount_ws "$1" "$2" "$3" --base empty "${@:4}"
}

# --- trees ---

# listing DIR [nochange]: every path with kind, mode, owner, links, size, times, link target, inode number, content and extended
# attributes, sorted. With `copy`, without what a copy cannot keep: inode numbers, ctime and atime.
listing() {
    local format='%P|%y|%m|%U:%G|%n|%s|%T@|%l'
    [ "${2:-}" = copy ] || format+='|%C@|%A@|%i'
    (
        cd "$1"
        # A directory's own size and link count are the file system's business.
        find . -mindepth 1 -printf "%y $format\n" | awk -F'|' -v OFS='|' '{ if ($2 == "d") { $5 = ""; $6 = "" } print }' | sort
        find . -type f -print0 | sort -z | xargs -0 -r sha256sum
        find . -print0 | sort -z | xargs -0 -r getfattr -h -d -m '^user\.' -e hex 2>/dev/null
    )
}

same_listing() {
    cmp -s "$1" "$2" || {
        diff "$1" "$2" | head -20 >&2
        fail "the listings differ"
    }
}

# make_tree DIR FILES: a tree with nested directories, small files, links of both kinds, modes, odd times, a fifo and extended attributes.
make_tree() {
    local dir=$1 files=$2 i
    mkdir -p "$dir/flat"
    seq 1 $((files * 40)) | (cd "$dir/flat" && split -a 4 -l 40 - f)
    for i in $(seq 0 9); do
        mkdir -p "$dir/nested/$i/deep/er"
        # Every tenth of the files, so that there is more than one directory.
        find "$dir/flat" -type f | sort | awk -v i="$i" 'NR % 20 == i' | xargs -r mv -t "$dir/nested/$i/deep/er"
        chmod "7${i}5" "$dir/nested/$i" 2>/dev/null || chmod 0711 "$dir/nested/$i"
    done
    ln -s "../nested/3/deep" "$dir/flat/link"
    ln -s "nowhere at all" "$dir/dangling"
    printf 'hard' >"$dir/one"
    ln "$dir/one" "$dir/nested/two"
    ln "$dir/one" "$dir/flat/three"
    mkfifo -m 0600 "$dir/fifo"
    printf 'name' >"$dir/$(printf 'odd \001\303\251\377 name')"
    printf 'old' >"$dir/before-1970"
    touch -d '1969-07-20 20:17:40.123456789 UTC' "$dir/before-1970"
    printf 'x' >"$dir/xattr"
    setfattr -n user.colour -v blue "$dir/xattr"
    setfattr -n user.empty "$dir/nested"
    chown 12:34 "$dir/xattr"
    chmod 4755 "$dir/one"
    : >"$dir/empty"
    truncate -s 1M "$dir/sparse"
    printf 'end' | dd of="$dir/sparse" bs=1 seek=700000 conv=notrunc status=none
}

# --- an S3 server ---

free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 20000))
        answers "$port" || break
    done
    echo "$port"
}
answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# s3_start DIR: a server with the bucket `bucket`; sets S3_PORT and S3_PID.
s3_start() {
    export AWS_ACCESS_KEY_ID=test-key AWS_SECRET_ACCESS_KEY=test-secret AWS_REGION=us-east-1
    mkdir -p "$1/bucket"
    S3_PORT=$(free_port)
    "$HILOOP_VERSITYGW" -q --access "$AWS_ACCESS_KEY_ID" --secret "$AWS_SECRET_ACCESS_KEY" --port "127.0.0.1:$S3_PORT" posix "$1" \
        >"$RIG/logs/s3.log" 2>&1 &
    S3_PID=$!
    printf '%s %s\n' "$S3_PID" "$1" >>"$RIG/pids"
    await "the S3 server" answers "$S3_PORT"
}
s3_url() { printf 's3://bucket?prefix=%s&endpoint=http://127.0.0.1:%s&use_path_style=true&disable_https=true' "$1" "${2:-$S3_PORT}"; }

# --- the proxy that breaks requests on purpose ---

# proxy_start: between the program and the S3 server; sets PROXY_PORT and PROXY_CONTROL.
proxy_start() {
    local pid at
    # The seed stands in the log; another one is another order of faults.
    "$HILOOP_BIN/store-proxy" --upstream "127.0.0.1:$S3_PORT" --seed "${HILOOP_FAULT_SEED:-1}" >"$DIR/proxy" 2>"$DIR/proxy.log" &
    pid=$!
    printf '%s %s\n' "$pid" "--upstream 127.0.0.1:$S3_PORT" >>"$RIG/pids"
    await "the proxy" test -s "$DIR/proxy"
    at=$(jq -r .listen "$DIR/proxy")
    PROXY_PORT=${at##*:}
    PROXY_CONTROL="http://$(jq -r .control "$DIR/proxy")/control"
}
# plan JSON: replaces what the proxy does; the empty plan is `{}`.
plan() { curl -fsS -X PUT --data-binary "$1" "$PROXY_CONTROL" >/dev/null; }
# proxied FILTER: one value of the proxy's state.
proxied() { curl -fsS "$PROXY_CONTROL" | jq -er "$1"; }
happened() { proxied ".counters.faults.$1"; }
happened_since() { [ "$(happened "$1")" -gt "$2" ]; }

# A store that fails now and then, as a bad day: every kind of fault but those that take long. What it did is proven at the end.
# The rarest of them, of which only some requests can be a victim, are the likeliest.
BAD_DAY='{"rules": [
    {"fault": "slow_down", "probability": 0.08, "retry_after_s": 0},
    {"fault": "reset_before", "probability": 0.08},
    {"fault": "reset_applied", "methods": ["PUT"], "probability": 0.2},
    {"fault": "error_applied", "methods": ["PUT"], "probability": 0.2},
    {"fault": "cut_body", "probability": 0.15},
    {"fault": "reset_during", "probability": 0.15},
    {"fault": "delay", "delay_ms": 100, "probability": 0.1}]}'
# bad_day_happened: ends a check on a store that fails; the faults must have been there.
bad_day_happened() {
    local kind
    for kind in slow_down reset_before reset_applied error_applied cut_body reset_during delay; do
        [ "$(happened "$kind")" -gt 0 ] || fail "the proxy did no $kind: the check proved nothing"
    done
    figure "$(proxied '[.counters.faults[]] | add') faults in $(proxied '[.counters.methods[].requests] | add') requests"
}

# use_store file|s3|faulty: sets STORE for the check at hand.
use_store() {
    case $1 in
        file) STORE="file://$DIR/store" && mkdir -p "$DIR/store" ;;
        s3) s3_start "$DIR/objects" && STORE=$(s3_url test) ;;
        faulty)
            s3_start "$DIR/objects"
            proxy_start
            STORE=$(s3_url test "$PROXY_PORT")
            plan "$BAD_DAY"
            ;;
    esac
}
