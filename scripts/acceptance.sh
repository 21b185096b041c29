#!/usr/bin/env bash
# The promises of the product, each played out with real processes: node lost, daemon killed, store stopped, writer fenced, thousand forks.
# Usage: acceptance.sh [--list] [--store file|s3|faulty] [CHECK…]; `faulty` is s3 through a proxy that breaks requests.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/rig.sh"

CHECKS=(lazy_open replicates_alone fork_cost lost_node killed_daemon thousand_forks)
# These need a store that can be stopped and cut off: always a server.
SERVER_CHECKS=(stopped_store fenced_writer)
KIND="file"
while [ $# -gt 0 ]; do
    case $1 in
        --list) printf 'acceptance::%s: test\n' "${CHECKS[@]}" "${SERVER_CHECKS[@]}" && exit 0 ;;
        --store) KIND=$2 && shift 2 ;;
        *) break ;;
    esac
done

MIB=$((1 << 20))

# The tree that a workspace starts from, and what a user then does to it: 2,000 new files, changes, removals, 256 MiB.
base_tree() { make_tree "$DIR/tree" 500 && publish tree "$DIR/tree" >/dev/null; }
work_in() {
    make_tree "$1/new" 2000
    head -c $((256 * MIB)) /dev/urandom >"$1/large"
    printf 'changed' >>"$1/one"
    rm -r "$1/nested/4"
    mv "$1/nested/5" "$1/moved"
    setfattr -n user.note -v "second" "$1/xattr"
    setfacl -m u:daemon:rwx "$1/moved"
    chmod 2750 "$1/moved"
    touch -h -d '2001-02-03 04:05:06.789 UTC' "$1/dangling"
}

# A fresh node opens the tree and reads one small file: what it fetched is a small part.
check_lazy_open() {
    local all opened
    use_store "$KIND"
    make_tree "$DIR/tree" 2000
    head -c $((128 * MIB)) /dev/urandom >tree/large
    publish tree "$DIR/tree" >published
    all=$(jq .bytes_stored published)
    mount_ws lazy "$DIR/mnt" "$DIR/cache" --base tree
    [ "$(find mnt -mindepth 1 | wc -l)" -eq "$(find tree -mindepth 1 | wc -l)" ] || fail "entries are missing"
    [ "$(cat mnt/one)" = hard ]
    opened=$(field "$DIR/mnt" residency.bytes)
    [ "$opened" -lt $((all / 20)) ] || fail "$opened of $all bytes were fetched to list the tree and read one small file"
    figure "$opened of $all stored bytes fetched to list the tree and read one file"
    cmp tree/large mnt/large
    [ "$(field "$DIR/mnt" residency.bytes)" -gt $((128 * MIB)) ] || fail "the cache did not keep what was read"
}

replicated() { [ "$(field "$DIR/mnt" published)" -ge "$1" ]; }

# Nobody asks for it: what is written arrives in the store.
check_replicates_alone() {
    local accepted start
    use_store "$KIND"
    mkdir empty
    publish empty "$DIR/empty" >/dev/null
    mount_ws alone "$DIR/mnt" "$DIR/cache" --base empty
    printf 'replicated by itself' >mnt/file
    accepted=$(field "$DIR/mnt" accepted)
    [ "$accepted" -gt 0 ] || fail "status shows no accepted operation"
    start=$(date +%s%N)
    await "the replicator" replicated "$accepted"
    figure "published $((($(date +%s%N) - start) / 1000000)) ms later"
    sw export --store "$STORE" workspace:alone "$DIR/out"
    cmp mnt/file out/file
}

# The price of a fork does not follow the size of the tree.
check_fork_cost() {
    local files cost=() ms=()
    use_store "$KIND"
    for files in 200 20000; do
        mkdir "tree-$files"
        (cd "tree-$files" && seq 1 "$files" | split -a 4 -l 1 - f)
        publish "tree-$files" "$DIR/tree-$files" >/dev/null
        sw fork --json --store "$STORE" "base:tree-$files" $(seq -f "of-$files-%03g" 1 50) >"forks-$files"
        cost+=("$(jq -r '.. | objects | select(has("bytes_written")) | .bytes_written' "forks-$files" | sort -n | tail -1)")
        ms+=("$(jq -r '.. | objects | select(has("ms")) | .ms' "forks-$files" | sort -n | sed -n 25p)")
    done
    figure "200 files: ${cost[0]} bytes, ${ms[0]} ms; 20,000 files: ${cost[1]} bytes, ${ms[1]} ms"
    # The head names the nodes that an opening reads first: of a small tree all, of any larger one at most some twenty.
    [ "${cost[0]}" -le 8192 ] && [ "${cost[1]}" -le 8192 ] || fail "a fork writes more than 8 KiB"
    [ "${cost[1]}" -le $((cost[0] + 20 * 165)) ] || fail "a fork of the larger tree writes more than the nodes that are named"
}

# Published, then the node is gone with all that it held.
check_lost_node() {
    use_store "$KIND"
    base_tree
    mount_ws lost "$DIR/mnt" "$DIR/cache-a" --base tree
    work_in "$DIR/mnt"
    sw flush "$DIR/mnt"
    listing mnt >want
    getfacl -R mnt >want.acl
    kill_daemon "$DIR/mnt"
    rm -rf cache-a
    mount_ws lost "$DIR/mnt" "$DIR/cache-b" --take-over >mounted
    listing mnt >got
    same_listing want got
    getfacl -R mnt >got.acl
    cmp want.acl got.acl
    figure "$(grep -c '^[a-z] ' want) entries and 256 MiB, listing $(sha256sum <want | cut -c1-12) on both nodes"
    figure "lost window $(jq -c .lost_window mounted)"
}

acknowledged() { [ -e acknowledged ] && [ "$(wc -l <acknowledged)" -ge "$1" ]; }

# Not published: the journal holds it.
check_killed_daemon() {
    local writer n
    use_store "$KIND"
    base_tree
    mount_ws killed "$DIR/mnt" "$DIR/cache" --base tree
    work_in "$DIR/mnt"
    listing mnt >want
    # While something is being written, so that the kill always finds what is not published.
    mkdir mnt/tail
    (
        n=0
        while printf '%s' "$n" >"mnt/tail/$n"; do
            echo "$n" >>acknowledged
            n=$((n + 1))
        done
    ) 2>writer.log &
    writer=$!
    await "300 acknowledged files" acknowledged 300
    kill_daemon "$DIR/mnt"
    wait "$writer"
    mount_ws killed "$DIR/mnt" "$DIR/cache" >mounted
    [ "$(jq .recovered_operations mounted)" -gt 0 ] || fail "all was published: the kill proved nothing"
    while read -r n; do [ "$(cat "mnt/tail/$n")" = "$n" ] || fail "file $n was acknowledged and is not there"; done <acknowledged
    figure "$(wc -l <acknowledged) files acknowledged until the kill, $(jq .recovered_operations mounted) operations from the journal"
    rm -r mnt/tail
    listing mnt >got
    same_listing want got
    figure "$(grep -c '^[a-z] ' want) entries and 256 MiB, listing $(sha256sum <want | cut -c1-12) before and after"
    # And from the store alone, after a clean release.
    unmount_ws "$DIR/mnt"
    mount_ws killed "$DIR/mnt" "$DIR/cache-2"
    listing mnt >again
    same_listing want again
}

backlog() { field "$DIR/mnt" backlog_bytes; }

# SIGSTOP of the store under a writer.
check_stopped_store() {
    local writer total=$((192 * MIB)) limit=$((48 * MIB)) size last="" same=0 peak
    use_store s3
    mkdir empty
    publish empty "$DIR/empty" >/dev/null
    mount_ws stopped "$DIR/mnt" "$DIR/cache" --base empty --backlog-limit 48MiB
    head -c "$total" /dev/urandom >source
    head -c $((4 * MIB)) source >mnt/before
    sw flush "$DIR/mnt" >/dev/null
    kill -STOP "$S3_PID"
    dd if=source of=mnt/file bs=64k status=none 2>writer.log &
    writer=$!
    # At the bound the file grows no more; wait until twenty looks in a row see the same size and a backlog.
    while [ "$same" -lt 20 ]; do
        kill -0 "$writer" 2>/dev/null || { cat writer.log; fail "the writer ended while the store was away"; }
        size=$(stat -c %s mnt/file 2>/dev/null || echo 0)
        if [ "$size" = "$last" ] && [ "$size" -gt 0 ]; then same=$((same + 1)); else same=0; fi
        last=$size
        sleep 0.25
    done
    peak=$(backlog)
    [ "$last" -lt "$total" ] || fail "the writer finished: nothing made it wait"
    [ "$peak" -le $((limit + 4 * MIB)) ] || fail "the backlog is $peak bytes, above its limit of $limit"
    [ "$peak" -ge $((limit / 2)) ] || fail "the writer waits at a backlog of only $peak bytes"
    cmp mnt/before <(head -c $((4 * MIB)) source)
    figure "waited at $((last / MIB)) MiB written, backlog $((peak / MIB)) MiB of 48"
    kill -CONT "$S3_PID"
    wait "$writer" || { cat writer.log; fail "the writer saw an error"; }
    sw flush "$DIR/mnt" >/dev/null
    [ "$(backlog)" -eq 0 ] || fail "the backlog is not empty after a flush"
    unmount_ws "$DIR/mnt"
    mount_ws stopped "$DIR/mnt" "$DIR/cache-2"
    cmp mnt/file source
    figure "after SIGCONT all is published"
}

# A relay stands between the first node and the store, so that only that node can be cut off.
relay_start() {
    setsid socat "TCP-LISTEN:$RELAY,bind=127.0.0.1,reuseaddr,fork" "TCP:127.0.0.1:$S3_PORT" &
    RELAY_PID=$!
    printf '%s %s\n' "$RELAY_PID" "TCP-LISTEN:$RELAY" >>"$RIG/pids"
    await "the relay" answers "$RELAY"
}
relay_stop() {
    kill -KILL -- "-$RELAY_PID"
    await "the end of the relay" gone "$RELAY_PID"
}
is_fenced() { [ "$(field "$DIR/a" standing)" = fenced ]; }

check_fenced_writer() {
    local direct through start fork
    use_store s3
    RELAY=$(free_port)
    relay_start
    direct=$(s3_url test)
    through=$(s3_url test "$RELAY")
    mkdir empty
    STORE=$direct publish empty "$DIR/empty" >/dev/null
    STORE=$through mount_ws fenced "$DIR/a" "$DIR/cache-a" --base empty
    printf 'published' >a/first
    sw flush "$DIR/a" >/dev/null
    relay_stop
    mkdir a/tail
    seq 1 4000 | (cd a/tail && split -a 3 -l 40 - f)
    printf 'changed' >a/first
    sync a/first

    STORE=$direct mount_ws fenced "$DIR/b" "$DIR/cache-b" --take-over >mounted
    [ "$(cat b/first)" = published ] || fail "the successor reads $(cat b/first)"
    [ ! -e b/tail ] || fail "the successor has what was never published"
    printf 'second writer' >b/second
    sw flush "$DIR/b" >/dev/null
    figure "lost window $(jq -c .lost_window mounted)"

    # The first node is idle from here on.
    relay_start
    start=$SECONDS
    AWAIT=60 await "the first writer to notice" is_fenced
    figure "fenced, idle, after $((SECONDS - start)) s"
    if (printf x >a/more) 2>errors; then fail "a fenced writer could still write"; fi
    grep -q 'Input/output error' errors || { cat errors; fail "the error is not EIO"; }
    [ "$(cat a/first)" = changed ] || fail "local reads stopped on the fenced node"

    STORE=$through
    # It says what is not in the store, and detaches all the same.
    if sw unmount "$DIR/a"; then fail "unmount says that all is published"; fi
    ! is_mounted "$DIR/a" || fail "unmount did not detach"
    sw recover --json --store "$through" --cache-dir "$DIR/cache-a" | tee recovered
    fork=$(jq -r '.. | objects | select(has("operations")) | .name // .fork // empty' recovered | head -1)
    [ -n "$fork" ] || fail "recover made no fork"
    STORE=$direct mount_ws "$fork" "$DIR/c" "$DIR/cache-b"
    [ "$(cat c/first)" = changed ] || fail "the fork lacks the change of the tail"
    [ "$(cat c/tail/* | sort -n | md5sum)" = "$(seq 1 4000 | md5sum)" ] || fail "the fork lacks files of the tail"
    [ ! -e c/second ] || fail "the fork has the successor's writes"
    figure "tail of $(find c/tail -type f | wc -l) files came back as a fork"
    sw recover --json --store "$through" --cache-dir "$DIR/cache-a" >again || { cat again; fail "a second recover fails"; }
}

packs() { if [ "$KIND" = file ]; then find "$DIR/store" -path '*packs*' -type f; else find "$DIR/objects" -path '*packs*' -type f; fi | wc -l; }
store_bytes() { du -sb "$([ "$KIND" = file ] && echo "$DIR/store" || echo "$DIR/objects")" | cut -f1; }

check_thousand_forks() {
    local names i largest start writer before after
    use_store "$KIND"
    base_tree
    mount_ws parent "$DIR/mnt" "$DIR/cache" --base tree
    head -c $((8 * MIB)) /dev/urandom >mnt/data
    sw snapshot --json --wait --name cut "$DIR/mnt" >/dev/null
    sha256sum <mnt/data >data.sum
    mapfile -t names < <(seq -f 'child-%04g' 1 1000)
    start=$(date +%s%N)
    sw fork --json --store "$STORE" snapshot:cut "${names[@]}" >forks
    figure "1000 forks in $((($(date +%s%N) - start) / 1000000)) ms"
    [ "$(jq -r '.. | objects | select(has("bytes_written")) | .name' forks | sort -u | wc -l)" -eq 1000 ] || { head -3 forks; fail "not every child has its row"; }
    largest=$(jq -r '.. | objects | select(has("bytes_written")) | .bytes_written' forks | sort -n | tail -1)
    figure "at most $largest bytes written for a child"
    [ "$largest" -le 8192 ] || fail "a fork wrote $largest bytes"

    # A change in one is in no other; what only it holds is 16 MiB.
    mount_ws child-0001 "$DIR/one" "$DIR/cache"
    mount_ws child-0002 "$DIR/two" "$DIR/cache"
    head -c $((16 * MIB)) /dev/urandom >one/own
    printf 'mine' >one/one
    sw flush "$DIR/one" >/dev/null
    [ ! -e two/own ] && [ "$(cat two/one)" = hard ] && [ ! -e mnt/own ] && [ "$(cat mnt/one)" = hard ] || fail "a change leaked into a sibling or the parent"
    unmount_ws "$DIR/one"
    unmount_ws "$DIR/two"
    mount_ws child-0500 "$DIR/five" "$DIR/cache-5"
    [ ! -e five/own ] && [ "$(cat five/one)" = hard ] || fail "a change leaked into a third child"
    unmount_ws "$DIR/five"

    # 999 go, beside a writer that never rests.
    (
        n=0
        while [ ! -e "$DIR/enough" ]; do
            head -c 200000 /dev/urandom >"$DIR/mnt/live-$((n % 7))"
            sha256sum <"$DIR/mnt/live-$((n % 7))" >"$DIR/live-$((n % 7)).sum"
            n=$((n + 1))
            echo "$n" >"$DIR/writes"
        done
    ) &
    writer=$!
    sw delete --store "$STORE" workspace "${names[@]:0:999}" >/dev/null
    before=$(store_bytes)
    start=$SECONDS
    sw gc --json --store "$STORE" --grace 0s | tee gc
    after=$(store_bytes)
    figure "gc in $((SECONDS - start)) s freed $(jq -s 'map(.bytes_freed // 0) | add' gc) bytes"
    [ "$(jq -s 'map(.bytes_freed // 0) | add' gc)" -ge $((15 * MIB)) ] || fail "what only deleted workspaces held was not freed ($before bytes before, $after after)"
    for i in 1 2 3 4 5; do sw gc --json --store "$STORE" --grace 0s >>gc-more; done
    kill -0 "$writer" || fail "the live writer died"
    touch enough
    wait "$writer"
    figure "$(cat writes) writes beside 6 runs"
    sw flush "$DIR/mnt" >/dev/null
    sw gc --json --store "$STORE" --grace 0s >gc-2

    # The last child and the parent, on caches that never saw them.
    unmount_ws "$DIR/mnt"
    mount_ws child-1000 "$DIR/last" "$DIR/cache-6"
    cp -p last/data tree/data
    listing last copy >got
    listing tree copy >want
    same_listing want got
    sha256sum <last/data | cmp - data.sum
    mount_ws parent "$DIR/mnt" "$DIR/cache-6"
    for i in live-*.sum; do sha256sum <"mnt/${i%.sum}" | cmp - "$i"; done
    sha256sum <mnt/data | cmp - data.sum
    sw fsck --json --deep --store "$STORE" | tee fsck
    figure "fsck --deep clean"
    [ "$(sw list --json --store "$STORE" workspaces | jq -rs 'map(.name // .workspace) | sort | join(" ")')" = "child-1000 parent" ] || fail "other workspaces are left"
}

case $KIND in
    s3) CHECKS+=("${SERVER_CHECKS[@]}") ;;
    faulty) after_check() { bad_day_happened; } ;;
esac
rig_start acceptance
run_checks "$@"
