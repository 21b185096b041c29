#!/usr/bin/env bash
# What a store can do to us, played out on a real S3 server behind store-proxy. Each check proves from the proxy's counters that its
# fault happened, and ends with the content read through a fresh cache and `fsck --deep`.
# Usage: faults.sh [--list] [CHECK…]; HILOOP_OUTAGE_S=300 makes the outage longer than its 35 s, HILOOP_FAULT_SEED=N orders faults anew.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/rig.sh"

CHECKS=(each_fault_in_turn store_away ambiguous_writes refuses_s3mock)
if [ "${1:-}" = --list ]; then
    printf 'faults::%s: test\n' "${CHECKS[@]}"
    exit 0
fi

MIB=$((1 << 20))

# behind_proxy: a server, the proxy, a base of small files in many directories and a large file.
behind_proxy() {
    s3_start "$DIR/objects"
    proxy_start
    STORE=$(s3_url test "$PROXY_PORT")
    make_tree "$DIR/tree" 300
    head -c $((8 * MIB)) /dev/urandom >tree/large
    head -c $((8 * MIB)) /dev/urandom >tree/other
    publish tree "$DIR/tree" >/dev/null
}

published() { [ "$(field "$DIR/mnt" published)" -ge "$1" ]; }
# Nobody asks for it: what was accepted arrives in the store.
all_published() { AWAIT=90 await "the replicator" published "$(field "$DIR/mnt" accepted)"; }

# whole NAME: without faults, the workspace on a fresh cache is what `mnt` holds now, and the store is sound.
whole() {
    local errors
    errors=$(field "$DIR/mnt" fuse.io_errors)
    listing mnt >want
    plan '{}'
    all_published
    unmount_ws "$DIR/mnt"
    mount_ws "$1" "$DIR/mnt" "$DIR/fresh-cache" >/dev/null
    listing mnt >got
    same_listing want got
    sw fsck --json --deep --store "$STORE" >fsck || { cat fsck; fail "fsck --deep found damage"; }
    figure "listing $(sha256sum <want | cut -c1-12) on a fresh cache, fsck --deep clean, $errors EIO"
}

# One kind of fault after the other, each dense, under a reader whose cache is empty and a writer; neither sees any of it.
check_each_fault_in_turn() {
    local rule kind n=0 before writer rules=(
        '"fault": "slow_down", "probability": 0.3, "retry_after_s": 0'
        '"fault": "reset_before", "probability": 0.3'
        '"fault": "reset_applied", "probability": 0.3'
        '"fault": "error_applied", "probability": 0.3'
        '"fault": "cut_body", "probability": 0.3'
        '"fault": "reset_during", "probability": 0.3'
        '"fault": "delay", "probability": 0.3, "delay_ms": 500'
        '"fault": "stall", "count": 2, "methods": ["GET"]'
        '"fault": "stall", "count": 1, "methods": ["PUT"], "path_prefix": "/bucket/test/packs/"'
    )
    behind_proxy
    for rule in "${rules[@]}"; do
        kind=$(jq -r .fault <<<"{$rule}")
        [ "$n" -eq 0 ] || { unmount_ws "$DIR/mnt" && rm -rf "$DIR/cache-$((n - 1))"; } >&2
        # A cache of its own each time, so that every read is a miss. Opening is a command: it has the store to itself.
        mount_ws turns "$DIR/mnt" "$DIR/cache-$n" $([ "$n" -gt 0 ] || echo --base tree) >/dev/null
        before=$(happened "$kind")
        plan "{\"rules\": [{$rule}]}"
        (seq "$n" $((n + 2000)) | split -a 3 -l 50 - "mnt/turn-$n-") &
        writer=$!
        head -c $((2 * MIB)) /dev/urandom >"written-$n"
        cp "written-$n" mnt/
        cmp tree/large mnt/large || fail "a read under $rule is wrong"
        diff -r tree/nested mnt/nested >&2 || fail "a small file under $rule is wrong"
        wait "$writer"
        cmp "written-$n" "mnt/written-$n"
        # The writer's faults come when the replicator works.
        AWAIT=60 await "a $kind" happened_since "$kind" "$before"
        # A put that is stalled is given up after a minute; here the connection breaks sooner.
        [ "$kind" != stall ] || plan '{}'
        all_published
        [ "$(field "$DIR/mnt" fuse.io_errors)" -eq 0 ] || fail "an operation under $rule ended in EIO"
        figure "$kind $(($(happened "$kind") - before))"
        plan '{}'
        n=$((n + 1))
    done
    whole turns
}

# Connections are refused for a while: what is here is read, what is not is EIO after 30 s and never ENOENT, the writer waits at its
# bound; when the store is back all of it goes on by itself.
check_store_away() {
    local limit=$((16 * MIB)) start writer miss look size last="" same=0 took
    behind_proxy
    mount_ws away "$DIR/mnt" "$DIR/cache" --base tree --backlog-limit 16MiB >/dev/null
    cmp tree/large mnt/large
    # A change needs the names beside it: these are known.
    printf 'before' >mnt/nested/local
    ls -R mnt/nested >/dev/null
    head -c $((48 * MIB)) /dev/urandom >source
    plan '{"outage": true}'
    ! answers "$PROXY_PORT" || fail "the proxy still takes connections"
    start=$SECONDS

    (cat mnt/other >/dev/null) 2>miss.errors &
    miss=$!
    dd if=source of=mnt/written bs=64k status=none 2>writer.log &
    writer=$!
    echo 3 >/proc/sys/vm/drop_caches
    cmp tree/large mnt/large || fail "a cached file cannot be read while the store is away"
    ls -R mnt/nested >/dev/null || fail "a cached directory cannot be listed while the store is away"
    printf 'local' >mnt/nested/local && [ "$(cat mnt/nested/local)" = local ] || fail "a small write did not go on"
    while [ "$same" -lt 12 ]; do
        kill -0 "$writer" 2>/dev/null || { cat writer.log; fail "the writer ended while the store was away"; }
        size=$(stat -c %s mnt/written 2>/dev/null || echo 0)
        if [ "$size" = "$last" ] && [ "$size" -gt 0 ]; then same=$((same + 1)); else same=0; fi
        last=$size
        sleep 0.25
    done
    [ "$(field "$DIR/mnt" backlog_bytes)" -le $((limit + 4 * MIB)) ] || fail "the backlog is above its limit"
    [ "$last" -lt $((48 * MIB)) ] || fail "nothing made the writer wait"

    if wait "$miss"; then fail "a file that is not here was read while the store was away"; fi
    took=$((SECONDS - start))
    grep -q 'Input/output error' miss.errors && ! grep -q 'No such file' miss.errors || { cat miss.errors; fail "a miss is not EIO"; }
    # The name is here, the content is not: the error is not kept.
    look=$(stat -c %s mnt/other) && [ "$look" -eq $((8 * MIB)) ] || fail "the file that could not be read is gone"
    figure "waited at $((last / MIB)) MiB of 48, EIO after $took s"
    while [ $((SECONDS - start)) -lt "${HILOOP_OUTAGE_S:-35}" ]; do sleep 0.5; done
    [ "$(proxied .counters.outages)" -eq 1 ] || fail "there was no outage"
    kill -0 "$writer" || fail "the writer ended while the store was away"
    figure "away $((SECONDS - start)) s, $(proxied .counters.outage_resets) connections reset"
    plan '{}'

    wait "$writer" || { cat writer.log; fail "the writer saw an error"; }
    cmp tree/other mnt/other || fail "the miss is remembered as an error"
    all_published
    cmp source mnt/written
    whole away
}

# lineage_opens WORKSPACE: how often it was opened for write.
lineage_opens() { sw lineage --json --store "$STORE" "$1" | jq -s '[.. | objects | select(.event == "opened" or .kind == "opened")] | length'; }

# ambiguous FAULT PREFIX COMMAND…: the first conditional write below PREFIX is applied and not answered so; the command must succeed.
ambiguous() {
    local fault=$1 prefix=$2 before
    shift 2
    before=$(happened "$fault")
    plan "{\"rules\": [{\"fault\": \"$fault\", \"methods\": [\"PUT\"], \"path_prefix\": \"/bucket/test/$prefix\", \"conditional\": true, \"count\": 1}]}"
    "$@" || fail "$* failed when its write of $prefix was applied and answered by $fault"
    happened_since "$fault" "$before" || fail "no conditional write of $prefix met $fault"
    plan '{}'
}

# Conditional writes that are applied and answered by an error: each is recognised by its session and nonce.
check_ambiguous_writes() {
    local fault n=0 epoch accepted
    s3_start "$DIR/objects"
    proxy_start
    STORE=$(s3_url test "$PROXY_PORT")
    make_tree "$DIR/tree" 100
    # The first publish also asks whether the store does conditional writes.
    ambiguous error_applied bases/ publish first "$DIR/tree" >/dev/null
    for fault in error_applied reset_applied; do
        n=$((n + 1))
        printf '%s' "$fault" >tree/which
        ambiguous "$fault" bases/ publish "base-$n" "$DIR/tree" >/dev/null
        ambiguous "$fault" heads/ mount_ws "ws-$n" "$DIR/mnt" "$DIR/cache-$n" --base "base-$n" >/dev/null
        epoch=$(field "$DIR/mnt" epoch)
        printf 'one' >mnt/file
        ambiguous "$fault" heads/ sw flush "$DIR/mnt" >/dev/null
        printf 'cut' >mnt/file
        ambiguous "$fault" snapshots/ sw snapshot --json --wait --name "cut-$n" "$DIR/mnt" >/dev/null
        ambiguous "$fault" heads/ sw fork --json --store "$STORE" "snapshot:cut-$n" "fork-$n" >/dev/null
        # A writer under a dense run of them.
        plan "{\"rules\": [{\"fault\": \"$fault\", \"methods\": [\"PUT\"], \"path_prefix\": \"/bucket/test/heads/\", \"conditional\": true, \"probability\": 0.6}]}"
        seq 1 2000 | (cd mnt && split -a 3 -l 10 - f)
        for i in 1 2 3 4 5 6; do
            printf '%s' "$i" >mnt/last
            sw flush "$DIR/mnt" >/dev/null || fail "flush $i failed under $fault"
        done
        accepted=$(proxied '.rules[0].fired')
        [ "$accepted" -gt 0 ] || fail "no conditional write of the writer met $fault"
        [ "$(field "$DIR/mnt" standing)" = live ] || fail "the writer was fenced by its own write"
        [ "$(field "$DIR/mnt" epoch)" = "$epoch" ] || fail "the epoch moved under one opening"
        figure "$fault: $accepted of $(proxied '.rules[0].fitted') head writes under a writer"
        listing mnt >want
        ambiguous "$fault" heads/ unmount_ws "$DIR/mnt" >/dev/null
        mount_ws "ws-$n" "$DIR/mnt" "$DIR/fresh-$n" >mounted
        [ "$(jq -r .lost_window.state mounted)" = none ] || { cat mounted; fail "the release was not recognised"; }
        listing mnt >got
        same_listing want got
        [ "$(field "$DIR/mnt" epoch)" -eq $((epoch + 1)) ] || fail "epoch $(field "$DIR/mnt" epoch) after $epoch: something opened twice"
        unmount_ws "$DIR/mnt" >/dev/null
        mount_ws "fork-$n" "$DIR/mnt" "$DIR/fresh-$n" >/dev/null
        [ "$(cat mnt/file)" = cut ] && [ ! -e mnt/last ] || fail "the fork is not the snapshot"
        unmount_ws "$DIR/mnt" >/dev/null
    done
    sw fsck --json --deep --store "$STORE" >fsck || { cat fsck; fail "fsck --deep found damage"; }
    [ "$(sw list --json --store "$STORE" workspaces | jq -rs 'map(.name // .workspace) | sort | join(" ")')" = "fork-1 fork-2 ws-1 ws-2" ] || fail "other workspaces exist"
    figure "fsck --deep clean"
}

# A server that accepts conditional writes one after the other and lets several racing ones win: refused, by name of the reason.
check_refuses_s3mock() {
    local port
    port=$(free_port)
    mkdir objects empty
    export AWS_ACCESS_KEY_ID=test-key AWS_SECRET_ACCESS_KEY=test-secret AWS_REGION=us-east-1
    java -Xmx256m -jar "$HILOOP_S3MOCK" --com.adobe.testing.s3mock.http-port="$port" --server.port=0 --server.address=127.0.0.1 \
        --com.adobe.testing.s3mock.store.root="$DIR/objects" --com.adobe.testing.s3mock.store.initial-buckets=bucket >s3mock.log 2>&1 &
    printf '%s %s\n' "$!" "http-port=$port" >>"$RIG/pids"
    AWAIT=150 await "S3Mock" curl -fsSo "$DIR/listed" "http://127.0.0.1:$port/bucket?list-type=2"
    STORE=$(s3_url test "$port")
    # One after the other it behaves.
    curl -fsS -X PUT -H 'If-None-Match: *' --data one "http://127.0.0.1:$port/bucket/seen" >/dev/null
    [ "$(curl -sS -o "$DIR/answer" -w '%{http_code}' -X PUT -H 'If-None-Match: *' --data two "http://127.0.0.1:$port/bucket/seen")" = 412 ] ||
        fail "S3Mock fails the sequential check: any probe would find it"
    if publish empty "$DIR/empty" >out 2>errors; then fail "publish-base takes a store that loses races"; fi
    grep -q 'conditional writes' errors || { cat errors; fail "the refusal does not name conditional writes"; }
    figure "$(grep -o '[0-9]* of 8 racing [a-z]* won' errors | head -1)"
    mkdir mnt
    if sw mount --json --store "$STORE" --workspace w --cache-dir "$DIR/cache" "$DIR/mnt" >out 2>errors; then fail "mount takes a store that loses races"; fi
    grep -q 'conditional writes' errors || { cat errors; fail "the refusal of mount does not name conditional writes"; }
    ! is_mounted "$DIR/mnt" || fail "mount refused, and mounted"
    curl -fsS "http://127.0.0.1:$port/bucket?list-type=2&prefix=test/" >listed
    ! grep -q '<Key>test/\(bases\|heads\)/' listed || fail "something was created in a refused store"
}

rig_start faults
run_checks "$@"
