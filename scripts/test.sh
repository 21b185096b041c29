#!/usr/bin/env bash
# ./dev test: runs stages, keeps each one's output as a log, and ends with a time budget and the number of tests that passed and failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./lib.sh
cd "$ROOT"

ALL=(fmt clippy arrows unit integration docs suites acceptance s3 faults csi bench fuzz requirements)

stage_fmt() { cargo fmt --all --check; }
stage_clippy() { cargo clippy --quiet --workspace --all-targets -- -D warnings; }
stage_arrows() { scripts/arrows.sh; }
stage_unit() { cargo test --workspace --lib --bins --no-fail-fast; }
stage_integration() { cargo test --workspace --test '*' --no-fail-fast; }
# The daemon killed again and again under writers; also, with fewer kills, in the stage integration.
stage_takeover() { HILOOP_TAKEOVER_KILLS=${HILOOP_TAKEOVER_KILLS:-50} cargo test --workspace --test e2e keeper:: -- --nocapture; }
stage_docs() {
    # Module documentation speaks to maintainers too, so it may link to private items.
    RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --quiet --workspace --no-deps
    cargo test --workspace --doc --no-fail-fast
}
stage_suites() { scripts/suites.sh; }
stage_acceptance() { scripts/acceptance.sh --store file; }
stage_s3() { scripts/acceptance.sh --store s3; }
stage_faults() {
    local rc=0
    scripts/acceptance.sh --store faulty lost_node killed_daemon || rc=1
    scripts/faults.sh || rc=1
    return "$rc"
}
stage_csi() { scripts/csi.sh; }
# Counts of requests, flushes and puts, never a time.
stage_bench() { scripts/bench.sh smoke; }
stage_fuzz() { scripts/fuzz.sh; }
# Reads the logs of the stages that ran before it, so that a test which is named but did not run is found.
stage_requirements() {
    local logs=() s
    for s in unit integration suites acceptance s3 faults csi; do
        [[ " ${ran[*]:-} " != *" $s "* ]] || logs+=("$LOGS/$s.log")
    done
    # With only some of the stages run the names are looked up instead.
    [ ${#logs[@]} -eq 7 ] || logs=()
    scripts/requirements.sh "${logs[@]}"
}

stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=("${ALL[@]}")
for s in "${stages[@]}"; do
    [ "$(type -t "stage_$s")" = function ] || die "no stage $s; there are: ${ALL[*]}"
done

LOGS=$(mktemp -d "$CACHE/logs/test.XXXXXX")
trap 'rm -rf "$LOGS"' EXIT
passed=0 failed=0 skipped=0 ran=() budget=() broken=()
begin=$SECONDS

# Adds up cargo's result lines, and the lines of our scripts in the same words.
count() {
    local p f i
    read -r p f i < <(awk '
        /^test result: / { for (k = 1; k < NF; k++) { if ($(k+1) == "passed;") p += $k; if ($(k+1) == "failed;") f += $k; if ($(k+1) == "ignored;") i += $k } }
        END { print p + 0, f + 0, i + 0 }' "$1")
    # A stage without tests of its own counts as one.
    if [ $((p + f)) -eq 0 ]; then [ "$2" -eq 0 ] && p=1 || f=1; fi
    # A build that failed ran no test, or not all.
    [ "$2" -eq 0 ] || [ "$f" -gt 0 ] || f=1
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + i))
    tally="$p passed, $f failed"
}

start=$SECONDS
needs=()
[[ " ${stages[*]} " != *" faults "* ]] || needs=(faults)
scripts/setup.sh "${needs[@]}"
budget+=("$(printf '%-14s %8s' setup "$(spell $((SECONDS - start)))")")
if [[ " ${stages[*]} " =~ \ (suites|acceptance|s3|faults|csi|bench)\  ]]; then
    start=$SECONDS
    build_binaries
    budget+=("$(printf '%-14s %8s' build "$(spell $((SECONDS - start)))")")
fi
for s in "${stages[@]}"; do
    say "stage $s"
    start=$SECONDS
    set +e
    (set -e; "stage_$s") 2>&1 | tee "$LOGS/$s.log"
    rc=${PIPESTATUS[0]}
    set -e
    ran+=("$s")
    count "$LOGS/$s.log" "$rc"
    [ "$rc" -eq 0 ] || broken+=("$s")
    budget+=("$(printf '%-14s %8s   %s' "$s" "$(spell $((SECONDS - start)))" "$tally")")
done

printf '\nTime budget by stage\n'
printf '  %s\n' "${budget[@]}"
printf '  %-14s %8s\n' total "$(spell $((SECONDS - begin)))"
[ ${#broken[@]} -eq 0 ] || printf 'Stages that failed: %s\n' "${broken[*]}"
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ ${#broken[@]} -eq 0 ] && [ "$failed" -eq 0 ]
