#!/usr/bin/env bash
# Outside suites and everyday programs on a mounted workspace, through the kernel.
# Usage: suites.sh [--list | CHECK…]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/rig.sh"

CHECKS=(defaults pjdfstest fsx fsx_churn untar rsync make git sqlite_wal sqlite_rollback sqlite_writers cargo_build npm_ci million)
DATA="$ROOT/fusefs/tests/suites"

check_defaults() {
    sw mount --help >help
    grep -q '/var/lib/hiloop/sandbox-workspace/cache' help || { cat help; fail "root's default cache directory is another"; }
}

# --- pjdfstest: every case on ours and on ext4 ---

# mount(8) would hand the remount of a FUSE file system to a helper that knows nothing of ours: -i goes to the kernel.
remount_helper() {
    mkdir bin
    printf '#!/bin/sh\nexec %s -i "$@"\n' "$(command -v mount)" >bin/mount
    chmod +x bin/mount
}

# pjdfstest_on NAME DIRECTORY [EXCLUDED]: leaves NAME.log. The cases that remount the file system read-only run in a process of their
# own: unlinked files that an earlier case left open would keep it busy.
pjdfstest_on() {
    local name=$1 directory=$2 pass rc=0
    for pass in main remount; do
        {
            cat "$DATA/pjdfstest.toml"
            [ "$pass" = main ] && echo 'allow_remount = false' || echo 'allow_remount = true'
            echo 'expected_failures = ['
            [ -z "${3:-}" ] || awk '!/^(#|$)/ { printf "  \"%s\",\n", $1 }' "$3"
            echo ']'
        } >"$name-$pass.toml"
        (cd "$directory" && PATH="$DIR/bin:$PATH" NO_COLOR=1 pjdfstest -c "$DIR/$name-$pass.toml" -s "$DIR/second" -p "$directory" \
            $([ "$pass" = main ] || echo erofs)) >"$name-$pass.log" 2>&1 || rc=1
        sed 's/\x1b\[[0-9;]*m//g' "$name-$pass.log" >>"$name.log"
    done
    return "$rc"
}
# cases NAME WORD: the cases whose verdict is WORD.
cases() { awk -v want="$2" '{ verdict = $0; sub(/^[^ ]+ +/, "", verdict) } verdict == want { print $1 }' "$1.log" | sort -u; }

check_pjdfstest() {
    local excluded="$DATA/pjdfstest-excluded.txt" rc=0
    ! grep -vE '^(#|$)' "$excluded" | grep -vE '^[a-z0-9_:]+ +.{20,}' || fail "these lines of $excluded give no reason"
    remount_helper
    mkdir second ref
    mount -t tmpfs -o size=1m none second
    truncate -s 256M ext4.img
    mkfs.ext4 -q ext4.img
    mount -o loop ext4.img ref
    empty_workspace pjdfstest "$DIR/mnt" "$DIR/cache"

    pjdfstest_on ext4 "$DIR/ref" || { grep -aA3 FAILED ext4.log; fail "the reference run on ext4 has failures"; }
    pjdfstest_on ours "$DIR/mnt" "$excluded" || rc=1
    figure "$(cases ours ok | wc -l) passed, $(cases ours FAILED | wc -l) failed, $(cases ours 'failed as expected' | wc -l) excluded"
    figure "ext4 $(cases ext4 ok | wc -l) passed"
    grep -aE -A3 'FAILED|PASSED UNEXPECTEDLY' ours.log || true
    [ "$rc" -eq 0 ] || fail "cases fail that are not excluded"
    # What ext4 passes, ours must pass too, or name.
    comm -23 <(cases ext4 ok) <(sort -u <(cases ours ok) <(awk '!/^#/ { print $1 }' "$excluded")) >missing
    [ ! -s missing ] || { cat missing; fail "these ran on ext4 and not on ours"; }
    [ "$(cases ext4 ok | wc -l)" -gt 350 ] || fail "the reference ran only $(cases ext4 ok | wc -l) cases"
}

# --- fsx ---

check_fsx() {
    local ops=${HILOOP_FSX_OPS:-20000} seed
    empty_workspace fsx "$DIR/mnt" "$DIR/cache"
    mkdir artifacts
    for seed in 1 2; do
        fsx -N "$ops" -S "$seed" -f "$DATA/fsx.toml" -P artifacts "mnt/file-$seed"
    done
    figure "2 seeds of $ops operations"
}

# While the tree is snapshotted, replicated and evicted.
check_fsx_churn() {
    local ops=${HILOOP_FSX_OPS:-20000} seed churn turns evicted
    # A disk cache of 8 MiB and a memory of 1 MiB, so that what is read again was evicted.
    empty_workspace churn "$DIR/mnt" "$DIR/cache" --cache-cap 8MiB --cache-floor 0 --cache-delete-delay 0s --memory-chunks 1MiB
    mkdir artifacts
    (
        n=0
        while :; do
            sw snapshot --json --name "turn-$n" "$DIR/mnt" >/dev/null
            sw flush "$DIR/mnt" >/dev/null
            echo 3 >/proc/sys/vm/drop_caches 2>/dev/null || true
            n=$((n + 1))
            echo "$n" >"$DIR/turns"
            sleep 0.2
        done
    ) >"$DIR/churn.log" 2>&1 &
    churn=$!
    # shellcheck disable=SC2064
    trap "kill $churn 2>/dev/null || true" EXIT
    for seed in 11 12 13; do
        fsx -N "$ops" -S "$seed" -f "$DATA/fsx.toml" -P artifacts "mnt/file-$seed"
    done
    kill -0 "$churn" || { cat churn.log; fail "snapshot or flush failed beside fsx"; }
    kill "$churn"
    wait "$churn" || true
    turns=$(cat turns)
    [ "$turns" -ge 3 ] || fail "only $turns snapshots were taken"
    evicted=$(field "$DIR/mnt" cache.evicted_pressure)
    figure "3 seeds of $ops operations beside $turns snapshots and flushes, $evicted entries evicted"
    [ "$evicted" -gt 0 ] || fail "nothing was evicted"
    # What fsx left must be the same from the store alone.
    (cd mnt && sha256sum file-*) >before
    unmount_ws "$DIR/mnt"
    mount_ws churn "$DIR/mnt" "$DIR/cache-2"
    (cd mnt && sha256sum file-*) >after
    cmp before after
}

# --- everyday programs ---

check_untar() {
    empty_workspace untar "$DIR/mnt" "$DIR/cache"
    make_tree "$DIR/tree" 4000
    tar --xattrs -C tree -cf tree.tar .
    tar --xattrs --numeric-owner -C mnt -xpf tree.tar
    listing tree copy >want
    listing mnt copy >got
    same_listing want got
    unmount_ws "$DIR/mnt"
    mount_ws untar "$DIR/mnt" "$DIR/cache-2"
    listing mnt copy >again
    same_listing want again
    figure "$(find tree | wc -l) entries, the same from the store alone"
}

check_rsync() {
    empty_workspace rsync "$DIR/mnt" "$DIR/cache"
    make_tree "$DIR/tree" 1000
    # By itself rsync compares times to the second.
    rsync -aHAX --numeric-ids --modify-window=-1 tree/ mnt/
    rsync -aHAXc --numeric-ids --modify-window=-1 --delete --dry-run --itemize-changes tree/ mnt/ >changes
    [ ! -s changes ] || { head changes; fail "rsync sees differences after a copy"; }
    printf 'changed' >tree/one
    rm -r tree/nested/1
    rsync -aHAX --numeric-ids --modify-window=-1 --delete tree/ mnt/
    listing tree copy >want
    listing mnt copy >got
    same_listing want got
    figure "$(find tree | wc -l) entries"
}

check_make() {
    local i
    empty_workspace make "$DIR/mnt" "$DIR/cache"
    cd mnt
    {
        printf 'OBJECTS := $(patsubst %%.c,%%.o,$(wildcard part*.c)) main.o\n'
        printf 'program: $(OBJECTS)\n\tcc -o $@ $^\n%%.o: %%.c all.h\n\tcc -O1 -c -o $@ $<\n'
    } >Makefile
    printf '#define START 0\n' >all.h
    printf '#include <stdio.h>\n#include "all.h"\n' >main.c
    for i in $(seq 1 40); do
        printf '#include "all.h"\nint part%d(int x) { return x + %d + START; }\n' "$i" "$i" >"part$i.c"
        printf 'int part%d(int);\n' "$i" >>main.c
    done
    {
        printf 'int main(void) { int x = 0;\n'
        for i in $(seq 1 40); do printf 'x = part%d(x);\n' "$i"; done
        printf 'printf("%%d\\n", x); return 0; }\n'
    } >>main.c
    make -j2 >/dev/null
    [ "$(./program)" = 820 ] || fail "the program computes $(./program)"
    make -q || fail "make finds work to do directly after a build"
    touch part7.c
    make | grep -c -- ' -c ' >../rebuilt
    [ "$(cat ../rebuilt)" = 1 ] || fail "make rebuilt $(cat ../rebuilt) objects for one change"
    figure "41 objects, 1 rebuilt for 1 change"
}

check_git() {
    export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.com
    export GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.com
    local i head
    empty_workspace git "$DIR/mnt" "$DIR/cache"
    git init -q mnt/repo
    (cd mnt/repo && mkdir -p src/a src/b && seq 1 40000 | split -a 4 -l 80 - src/a/f && git add . && git commit -qm first)
    for i in 1 2 3; do
        (cd mnt/repo && echo "$i" >>src/a/faaaa && echo "$i" >"src/b/$i" && git add . && git commit -qm "change $i")
    done
    (cd mnt/repo && git checkout -qb other HEAD~2 && echo o >other && git add other && git commit -qm other && git checkout -q - && git merge -qm merge other)
    (cd mnt/repo && git gc --quiet --aggressive --prune=now && git fsck --full --strict)
    git clone -q --no-local mnt/repo mnt/clone
    git clone -q --no-local mnt/repo outside
    head=$(git -C mnt/repo rev-parse HEAD)
    [ "$(git -C mnt/clone rev-parse HEAD)" = "$head" ] && [ "$(git -C outside rev-parse HEAD)" = "$head" ] || fail "a clone has another head"
    unmount_ws "$DIR/mnt"
    mount_ws git "$DIR/mnt" "$DIR/cache-2"
    [ -z "$(git -C mnt/repo status --porcelain)" ] || { git -C mnt/repo status --porcelain | head; fail "status is not clean after a move"; }
    # The index compares size, times and inode number: nothing may look changed after a move.
    [ -z "$(cd mnt/repo && git diff-files --name-only)" ] || fail "the index no longer fits the files after a move"
    git -C mnt/repo fsck --full --strict
    figure "$(git -C mnt/repo rev-list --count HEAD) commits, clean after gc and a move to another cache"
}

# sqlite_killed JOURNAL_MODE: a writer commits, the daemon is killed; everything that was committed is there, and the database is sound.
sqlite_killed() {
    local writer acknowledged kept round
    empty_workspace "sqlite-$1" "$DIR/mnt" "$DIR/cache"
    sqlite3 mnt/db "PRAGMA journal_mode=$1; CREATE TABLE t(n INTEGER PRIMARY KEY, body BLOB);" >/dev/null
    for round in 1 2 3; do
        kept=$(sqlite3 mnt/db 'SELECT count(*) FROM t')
        (
            printf 'PRAGMA journal_mode=%s;\nPRAGMA synchronous=FULL;\n' "$1"
            for n in $(seq $((kept + 1)) $((kept + 20000))); do
                printf "INSERT INTO t VALUES(%d, randomblob(700));\nSELECT 'row', %d;\n" "$n" "$n"
            done
        ) >script
        stdbuf -oL sqlite3 -bail mnt/db <script >acknowledged 2>writer.log &
        writer=$!
        await "150 commits" enough_rows 150
        kill_daemon "$DIR/mnt"
        wait "$writer" && fail "the writer saw no error although its file system died"
        mount_ws "sqlite-$1" "$DIR/mnt" "$DIR/cache"
        acknowledged=$(grep -a '^row' acknowledged | tail -n 1 | cut -d'|' -f2)
        [ "$(sqlite3 mnt/db 'PRAGMA integrity_check')" = ok ] || fail "the database is damaged in round $round"
        kept=$(sqlite3 mnt/db 'SELECT max(n) FROM t')
        [ "$kept" -ge "$acknowledged" ] || fail "commit $acknowledged was acknowledged and only $kept are there"
    done
    figure "3 kills, $kept rows, integrity ok"
}
enough_rows() { [ "$(grep -ac '^row' acknowledged)" -ge "$1" ]; }
check_sqlite_wal() { sqlite_killed wal; }
check_sqlite_rollback() { sqlite_killed delete; }

# Four writers at once (huggingface/hf-mount#103): each waits for the others' locks and none fails.
check_sqlite_writers() {
    local w writers=()
    empty_workspace sqlite-writers "$DIR/mnt" "$DIR/cache"
    sqlite3 mnt/db 'PRAGMA journal_mode=wal; CREATE TABLE t(writer INTEGER, n INTEGER);' >/dev/null
    for w in 1 2 3 4; do
        {
            echo '.timeout 300000'
            for n in $(seq 1 200); do echo "INSERT INTO t VALUES($w, $n);"; done
        } >"script-$w"
        sqlite3 -bail mnt/db <"script-$w" >"writer-$w.log" 2>&1 &
        writers+=($!)
    done
    for w in "${writers[@]}"; do
        wait "$w" || { cat writer-*.log; fail "a writer failed"; }
    done
    [ "$(sqlite3 mnt/db 'SELECT count(*), count(DISTINCT writer * 1000 + n) FROM t')" = '800|800' ] || fail "rows are missing"
    [ "$(sqlite3 mnt/db 'PRAGMA integrity_check')" = ok ] || fail "the database is damaged"
    figure "4 writers, 800 rows"
}

check_cargo_build() {
    local i
    empty_workspace cargo "$DIR/mnt" "$DIR/cache"
    mkdir -p mnt/crate/src
    cd mnt/crate
    printf '[package]\nname = "small"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n' >Cargo.toml
    {
        for i in $(seq 1 30); do printf 'mod m%d;\n' "$i"; done
        printf 'fn main() { let mut x = 0u64;\n'
        for i in $(seq 1 30); do printf 'x = m%d::f(x);\n' "$i"; done
        printf 'println!("{x}"); }\n#[test]\nfn one() { assert_eq!(m1::f(1), 2); }\n'
    } >src/main.rs
    for i in $(seq 1 30); do printf 'pub fn f(x: u64) -> u64 { x + %d }\n' "$i" >"src/m$i.rs"; done
    export CARGO_TARGET_DIR="$DIR/mnt/crate/target"
    cargo build --offline --quiet
    [ "$(target/debug/small)" = 465 ] || fail "the program prints $(target/debug/small)"
    cargo build --offline --verbose 2>&1 | grep -q 'Fresh small' || fail "cargo builds again although nothing changed"
    cargo test --offline --quiet
    # Two at once in one target directory (rust-lang/cargo#4629): the second waits for the first one's lock.
    printf '// changed\n' >>src/main.rs
    cargo build --offline --quiet &
    cargo build --offline --quiet
    wait $!
    [ "$(target/debug/small)" = 465 ] || fail "two builds at once made another program"
    figure "$(find target -type f | wc -l) files built, fresh when unchanged"
}

check_npm_ci() {
    local p
    empty_workspace npm "$DIR/mnt" "$DIR/cache"
    export npm_config_cache="$DIR/npm-cache" npm_config_offline=true npm_config_audit=false npm_config_fund=false
    export npm_config_update_notifier=false
    mkdir -p packages mnt/app/vendor
    printf '{"name":"app","version":"1.0.0","dependencies":{' >mnt/app/package.json
    for p in one two three; do
        mkdir -p "packages/$p/lib"
        printf '{"name":"%s","version":"1.0.0","main":"index.js","bin":{"%s":"index.js"}}' "$p" "$p" >"packages/$p/package.json"
        (cd "packages/$p/lib" && seq 1 1500 | sed 's/.*/exports.v& = &;/' | split -a 3 -l 10 --additional-suffix=.js - m)
        printf '#!/usr/bin/env node\nconst fs = require("fs");\nmodule.exports = fs.readdirSync(__dirname + "/lib").length;\n' >"packages/$p/index.js"
        (cd "packages/$p" && npm pack --silent --pack-destination "$DIR/mnt/app/vendor" >/dev/null)
        printf '%s"%s":"file:vendor/%s-1.0.0.tgz"' "$([ "$p" = one ] || echo ,)" "$p" "$p" >>mnt/app/package.json
    done
    printf '}}' >>mnt/app/package.json
    cd mnt/app
    npm install --package-lock-only --silent
    npm ci --silent
    [ "$(node -p 'require("one") + require("two") + require("three")')" = 450 ] || fail "the installed packages are not whole"
    [ -x node_modules/.bin/two ] || fail "node_modules/.bin is missing"
    # A second run removes all of it and installs anew.
    npm ci --silent
    npm ls --silent >/dev/null
    figure "$(find node_modules -type f | wc -l) files"
}

# A directory of a million entries: published, listed by two nodes, changed at both ends while it is being listed.
check_million() {
    local began=$SECONDS listed
    python3 - <<'EOF' | publish million - >/dev/null
import sys
out = sys.stdout.buffer
block = []
for n in range(1_000_000):
    head = bytearray(512)
    name = b"d/entry-%07d" % n
    head[:len(name)] = name
    head[100:108], head[108:116], head[116:124] = b"0000644\0", b"0000000\0", b"0000000\0"
    head[124:136], head[136:148], head[156:157] = b"00000000000\0", b"00000000000\0", b"0"
    head[257:265] = b"ustar\x0000"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    block.append(bytes(head))
    if len(block) == 4096:
        out.write(b"".join(block))
        block.clear()
out.write(b"".join(block) + bytes(1024))
EOF
    figure "published in $((SECONDS - began)) s"
    STORE="file://$DIR/store"
    mount_ws million "$DIR/mnt" "$DIR/cache" --base million
    began=$SECONDS
    [ "$(ls -f mnt/d | sort -u | wc -l)" = 1000002 ] || fail "the listing is not whole"
    figure "listed in $((SECONDS - began)) s"
    # Names come and go at both ends while a listing is open: what stays is listed once, what is new or gone once at most.
    python3 - mnt/d <<'EOF'
import os, sys
d = sys.argv[1]
seen, n = {}, 0
with os.scandir(d) as entries:
    for e in entries:
        seen[e.name] = seen.get(e.name, 0) + 1
        if n < 2000 and n % 2 == 0:
            open(f"{d}/new-{n}", "w").close()
            os.unlink(f"{d}/entry-{n:07d}")
            os.rename(f"{d}/entry-{999_999 - n:07d}", f"{d}/moved-{n}")
        n += 1
gone = {f"entry-{k:07d}" for n in range(0, 2000, 2) for k in (n, 999_999 - n)}
stays = {f"entry-{k:07d}" for k in range(1_000_000)} - gone
assert all(seen.get(name) == 1 for name in stays), "an entry that stays was lost or repeated"
assert max(seen.values()) == 1, "an entry was listed twice"
EOF
    [ "$(stat -c %s,%h mnt/d/entry-0500000)" = 0,1 ] || fail "an entry in the middle is not what it was"
    [ ! -e mnt/d/entry-0000000 ] && [ -e mnt/d/moved-0 ] && [ -e mnt/d/new-1998 ] || fail "a change was lost"
    ls -f mnt/d | sort >want
    unmount_ws "$DIR/mnt"
    mount_ws million "$DIR/mnt" "$DIR/cache-2"
    began=$SECONDS
    ls -f mnt/d | sort >got
    listed=$((SECONDS - began))
    same_listing want got
    figure "$(($(wc -l <got) - 2)) entries on a node that had nothing, listed in $listed s"
}

if [ "${1:-}" = --list ]; then
    printf 'suites::%s: test\n' "${CHECKS[@]}"
    exit 0
fi
rig_start suites
STORE=""
# Each check has a store of its own below its directory.
publish() {
    STORE="file://$DIR/store"
    mkdir -p "$DIR/store"
    sw publish-base --json --store "$STORE" --build-id "$1" "$2"
}
run_checks "$@"
