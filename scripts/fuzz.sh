#!/usr/bin/env bash
# Runs fuzz targets, each for a bounded time. What they learn stays in the build cache; what they find is copied there, too, and named.
# Usage: fuzz.sh [--seconds N] [TARGET…]; all targets for 4 s each by default. A night: fuzz.sh --seconds 3600
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./lib.sh
cd "$ROOT"

seconds=4
[ "${1:-}" != --seconds ] || { seconds=$2 && shift 2; }
mapfile -t all < <(find fuzz/fuzz_targets -name '*.rs' -printf '%f\n' | sed 's/\.rs$//' | sort)
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=("${all[@]}")
bins=()
for t in "${targets[@]}"; do
    [ -f "fuzz/fuzz_targets/$t.rs" ] || die "no fuzz target $t; there are: ${all[*]}"
    bins+=(--bin "fuzz-${t//_/-}")
done

# `--workspace` keeps the features of every other build, so that only our crates are compiled again, with counters.
RUSTC_WORKSPACE_WRAPPER="$ROOT/scripts/fuzz-rustc.sh" cargo build --workspace --features hiloop-fuzz/run "${bins[@]}" >&2

work="$CACHE/fuzz"
logs=$(mktemp -d "$CACHE/logs/fuzz.XXXXXX")
trap 'rm -rf "$logs"' EXIT

# one TARGET: runs it and prints a line in the words of cargo's test runner.
one() {
    local t=$1 log="$logs/$1.log" runs
    mkdir -p "$work/$t/corpus" "$work/$t/found"
    # 10 s for one input, 1 GiB in all: what takes more has believed a length.
    if "$HILOOP_BIN/fuzz-${t//_/-}" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=65536 -print_final_stats=1 \
        -artifact_prefix="$work/$t/found/" "$work/$t/corpus" "fuzz/seeds/$t" >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        # A target that runs nothing, or without counters, finds nothing.
        if [ "${runs:-0}" -gt 0 ] && grep -q 'INFO: Loaded [0-9]* modules' "$log" && grep -q ' cov: [1-9]' "$log"; then
            printf 'test fuzz::%s ... ok (%s inputs, %s)\n' "$t" "$runs" "$(grep -o 'cov: [0-9]*' "$log" | tail -1)"
            return 0
        fi
    fi
    printf 'test fuzz::%s ... FAILED\n' "$t"
    grep -aE 'panicked at|ERROR|^left|^right|  left:|  right:|Test unit written|no interesting inputs' -A2 "$log" | head -30 | cut -c1-400 | sed 's/^/    /'
    tail -n 5 "$log" | cut -c1-300 | sed 's/^/    /'
    printf '    once it is fixed, keep the input as a test: fuzz/regressions/%s/\n' "$t"
    return 1
}

# As many at once as there are processors; the lines come in the order of the targets.
running=()
for t in "${targets[@]}"; do
    [ ${#running[@]} -lt "$(nproc)" ] || { wait "${running[0]}" || true; running=("${running[@]:1}"); }
    one "$t" >"$logs/$t.line" &
    running+=($!)
done
wait
for t in "${targets[@]}"; do cat "$logs/$t.line"; done
failed=$(grep -lE '^test .* FAILED' "$logs"/*.line | wc -l || true)
printf '\ntest result: %s. %d passed; %d failed; 0 ignored\n' "$([ "$failed" -eq 0 ] && echo ok || echo FAILED)" $((${#targets[@]} - failed)) "$failed"
[ "$failed" -eq 0 ]
