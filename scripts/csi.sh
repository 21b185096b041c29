#!/usr/bin/env bash
# The outside suite for CSI drivers, csi-sanity, whole, against csi-node over the real daemon with real mounts. Our own node tests are
# `cargo test --workspace --test csi`.
# Usage: csi.sh [--list | CHECK…]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/rig.sh"

CHECKS=(generated sanity fence)
CSI=${CSI_NODE:-$HILOOP_BIN/csi-node}

# What is checked in of the protocols is what their files give.
check_generated() { "$ROOT/scripts/protogen.sh" --check; }

control_answers() { sw ctl --socket "$DIR/run/control.sock" --timeout 5s info >/dev/null 2>&1; }

# serve NAME AT: the daemon of a node whose directories lie in AT; its process is $!. All options come from its configuration, as in
# the packaged one.
serve() {
    cat >"$2/daemon.toml" <<TOML
store = "$STORE"
cache-dir = "$2/cache"
kubelet-root = "$2/kubelet"
control-socket = "$2/run/control.sock"
node-name = "$1"
TOML
    sw check-config --config "$2/daemon.toml"
    "$SW" daemon --foreground --config "$2/daemon.toml" >"$1-cache.log" 2>&1 &
    printf '%s %s\n' $! "$2/daemon.toml" >>"$RIG/pids"
}

check_sanity() {
    local run skipped
    use_store file
    make_tree tree 200
    publish sanity-base tree >/dev/null
    mkdir -p kubelet/plugins kubelet/pods
    serve sanity "$DIR"
    await "the daemon" control_answers
    "$CSI" --endpoint "unix://$DIR/kubelet/plugins/csi.sock" --control-socket "$DIR/run/control.sock" --kubelet-root "$DIR/kubelet" \
        --state-dir "$DIR/state" --node-id sanity --allow-name-identity >csi-cache.log 2>&1 &
    printf '%s %s\n' $! "$DIR/kubelet/plugins/csi.sock" >>"$RIG/pids"
    await "the driver" test -S "$DIR/kubelet/plugins/csi.sock"
    printf 'baseBuild: sanity-base\n' >params.yaml
    # It makes and removes the last part of the mount and staging directories by itself.
    timeout -k 5 300 csi-sanity --csi.endpoint "unix://$DIR/kubelet/plugins/csi.sock" --csi.mountdir "$DIR/kubelet/pods/mount" \
        --csi.stagingdir "$DIR/kubelet/pods/staging" --csi.testvolumeparameters "$DIR/params.yaml" --csi.testvolumesize 1073741824 \
        --ginkgo.no-color --ginkgo.junit-report "$DIR/junit.xml" >sanity.log 2>&1 || { tail -n 120 sanity.log; fail "csi-sanity failed"; }
    # Its own summary.
    grep -E '^Ran |^(SUCCESS|FAIL)!' sanity.log | tee "$RIG/summary"
    run=$(sed -n 's/^Ran \([0-9]*\) of .*/\1/p' sanity.log)
    # As many as the suite has for what the driver advertises.
    [ "$run" -ge 33 ] || fail "only $run specs were run"
    # What is skipped is what is not advertised.
    skipped=$(skips junit.xml)
    figure "$(sed -n 's/^\(Ran .*\) in .*/\1/p' sanity.log), 0 failed, $skipped skipped for what is not advertised"
    [ -z "$(awk -v d="$DIR/kubelet" 'index($5, d) == 1' /proc/self/mountinfo)" ] || fail "mounts are left"
    [ -z "$(find state -mindepth 1 -print -quit)" ] || fail "targets are still recorded as sealed"
    [ -z "$(find kubelet/pods -mindepth 1 -print -quit)" ] || fail "directories are left: $(find kubelet/pods -mindepth 1)"
    sw ctl --socket "$DIR/run/control.sock" --json list | jq -e '.mounts == [] and .draining == []' >/dev/null || fail "the daemon has mounts left"
    fsck_clean
}

# node NAME: a node with the pace of heartbeats that it has by default.
node() {
    mkdir -p "$1/kubelet" "$1/mnt"
    serve "$1" "$DIR/$1"
    await "node $1" ctl "$1" info
}
ctl() { sw --json ctl --timeout 100s --socket "$DIR/$1/run/control.sock" "${@:2}"; }
is_cut_off() { ! : >"$1/late"; }

# A node that falls silent is waited for as long as it is by default, then fenced; it fails loudly when it comes back.
check_fence() {
    local ws pid start silent
    use_store file
    make_tree tree 50
    publish fence-base tree >/dev/null
    node one >/dev/null
    pid=$!
    node two >/dev/null
    ws=$(ctl one create boxes/box --base fence-base | jq -re .workspace)
    ctl one attach "$ws" one/mnt >/dev/null
    echo kept >one/mnt/kept
    ctl one flush "$ws" >/dev/null
    ! ctl two attach "$ws" two/mnt >refused 2>&1 || fail "a live writer was fenced"
    grep -q 'live writer: node one, .* bytes unpublished' refused || fail "the writer is not named: $(cat refused)"
    kill -STOP "$pid"
    start=$SECONDS
    ctl two attach "$ws" two/mnt >attached
    silent=$((SECONDS - start))
    # Seconds are cut off on both sides.
    [ "$silent" -ge 29 ] || fail "fenced after $silent s"
    figure "fenced after $silent s of silence"
    [ "$(cat two/mnt/kept)" = kept ] || fail "what was published is not there"
    kill -CONT "$pid"
    await "EIO on the first node" is_cut_off one/mnt 2>/dev/null
    [ ! -e two/mnt/late ] || fail "the first node wrote into the second's"
    ctl two detach two/mnt >/dev/null
}

# skips JUNIT: how many specs were skipped for a capability that is not advertised; any other reason fails. One spec is pending upstream.
skips() {
    local reasons
    reasons=$(grep -oE '<skipped message="[^"]*"' "$1" | sed 's/.*message="//; s/"$//' | grep -vx pending)
    if grep -vE '^skipped - .* not supported$' <<<"$reasons" >&2; then
        fail "these specs were skipped for another reason than a capability that is not advertised"
    fi
    wc -l <<<"$reasons"
}

fsck_clean() { sw fsck --store "$STORE" >/dev/null; }

if [ "${1:-}" = --list ]; then
    printf 'csi::%s: test\n' "${CHECKS[@]}"
    exit 0
fi
command -v csi-sanity >/dev/null || die "csi-sanity is missing: ./dev setup"
[ -x "$CSI" ] || die "$CSI is missing: ./dev build"
rig_start csi
STORE=""
# In its own words, as the last thing said.
trap '[ ! -s "$RIG/summary" ] || { echo "csi-sanity:"; sed "s/^/  /" "$RIG/summary"; }; rig_stop' EXIT
# Not in a condition: that would switch off errexit in every check.
run_checks "$@"
