#!/usr/bin/env bash
# Checks docs/requirements.md and docs/proof.md: each test that they name must exist and, when the logs of a test run are given, must have passed in it.
# Usage: requirements.sh [LOG…]; without logs the names are asked from the test programs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./lib.sh
cd "$ROOT"

# `crate::path::test` of every test in cargo's output: the crate is the test program's, without its hash.
names() {
    awk '
        /^ *Running .*\(.*-[0-9a-f]+\)$/ { n = $NF; gsub(/[()]/, "", n); sub(/.*\//, "", n); sub(/-[0-9a-f]+$/, "", n); crate = n "::" }
        /^ *Doc-tests / { crate = "" }
        # The scripts tell what was measured behind it; tests of a program may be in a module of the same name.
        /^test (suites|acceptance|faults|csi)::[^ ]+ \.\.\. ok \(/ { print $2; next }
        /^test .+ \.\.\. ok$/ { if (crate != "") print crate $2 }
        /^[^ ]+: test$/ { sub(/: test$/, ""); print crate $0 }' "$@" | sort -u
}

list=$(mktemp)
trap 'rm -f "$list" "$list.all"' EXIT
if [ $# -gt 0 ]; then
    verdict="did not pass in this run"
    names "$@" >"$list"
else
    verdict="does not exist"
    cargo test --workspace --lib --bins --tests -- --list >"$list.all" 2>&1 || { tail -n 30 "$list.all"; die "the tests do not build"; }
    # From here on names of no test program.
    echo "   Doc-tests none" >>"$list.all"
    scripts/suites.sh --list >>"$list.all"
    scripts/acceptance.sh --list >>"$list.all"
    scripts/csi.sh --list >>"$list.all"
    scripts/faults.sh --list >>"$list.all"
    names "$list.all" >"$list"
fi

rows=0 proven=0 open=() failures=0
while IFS='|' read -r _ number _ tests _; do
    number=${number//[[:space:]]/}
    [[ $number =~ ^[ABCD][0-9]+$ ]] || continue
    rows=$((rows + 1))
    named=$(grep -oE '`[a-z0-9_]+::[^`]+`' <<<"$tests" | tr -d '`' || true)
    if [ -z "$named" ]; then
        open+=("$number")
        continue
    fi
    proven=$((proven + 1))
    while read -r t; do
        grep -qxF "$t" "$list" || { printf '%s names `%s`, which %s\n' "$number" "$t" "$verdict"; failures=$((failures + 1)); }
    done <<<"$named"
done <docs/requirements.md

# The rows of docs/proof.md may name several tests, or none: a name that stands there must hold.
rows_of_proof=0
while read -r t; do
    rows_of_proof=$((rows_of_proof + 1))
    grep -qxF "$t" "$list" || { printf 'docs/proof.md names `%s`, which %s\n' "$t" "$verdict"; failures=$((failures + 1)); }
done < <(grep '^|' docs/proof.md | grep -oE '`[a-z0-9_]+::[^`]+`' | tr -d '`' | grep -v '::$' | sort -u)

want=($(seq -f 'A%g' 1 26) A30 $(seq -f 'B%g' 33 37) B42 B43 C46 C49 C51 C52 C55 C58 C61 $(seq -f 'D%g' 62 65))
[ "$rows" -eq ${#want[@]} ] || { echo "docs/requirements.md has $rows rows, not ${#want[@]}"; failures=$((failures + 1)); }
echo "$proven of $rows requirements name tests that $([ $# -gt 0 ] && echo passed || echo exist); open: ${open[*]:-none}; docs/proof.md names $rows_of_proof tests"
[ "$failures" -eq 0 ]
