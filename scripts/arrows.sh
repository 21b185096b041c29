#!/usr/bin/env bash
# Checks the direction of dependencies: which of our crates may use which, and what the engine must not know.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./lib.sh
cd "$ROOT"

# Our crates, each with those of ours that it may name as a normal dependency. A crate without a row fails.
declare -A MAY=(
    [hiloop-env]=""
    [hiloop-types]=""
    [hiloop-journal]="env types"
    [hiloop-cache]="env types"
    [hiloop-store]="env types"
    [hiloop-manifest]="types"
    [hiloop-source]="types"
    [hiloop-rocks]="types"
    [hiloop-engine]="cache env journal manifest source store types"
    [hiloop-sim]="cache engine env journal manifest source store types"
    [hiloop-control]="types"
    [hiloop-csi]="control types"
    [hiloop-keeper]=""
    [hiloop-fusefs]="cache control engine env journal keeper manifest rocks source store transport types"
    [hiloop-powercut]="env"
    [hiloop-transport]="env"
    [hiloop-proxy]="env"
    [hiloop-fuzz]="cache engine journal manifest source store types"
    [hiloop-benches]="cache engine env fusefs journal manifest rocks sim source store transport types"
)
# Third-party crates that only these of ours may name directly.
declare -A OWNER=([fuser]="hiloop-powercut hiloop-benches" [rocksdb]="hiloop-rocks" [object_store]="hiloop-store")
# What no engine crate may reach, directly or not: web, SQL, Kubernetes, gRPC, FUSE and command-line crates.
FORBIDDEN='axum|actix-web|warp|rocket|tonic|prost|sqlx|diesel|rusqlite|tokio-postgres|kube|k8s-openapi|fuser|fuse3|polyfuse|clap|indicatif'
ENGINE=(hiloop-types hiloop-env hiloop-journal hiloop-cache hiloop-store hiloop-manifest hiloop-source hiloop-engine)

failures=0 checks=0
wrong() {
    printf '%s\n' "$*"
    failures=$((failures + 1))
}

meta=$(cargo metadata --format-version 1 --no-deps)
while read -r crate; do
    checks=$((checks + 1))
    [ -n "${MAY[$crate]+row}" ] || { wrong "$crate has no row in scripts/arrows.sh"; continue; }
    while read -r dep; do
        if [[ $dep == hiloop-* ]]; then
            [[ " ${MAY[$crate]} " == *" ${dep#hiloop-} "* ]] || wrong "$crate must not depend on $dep"
        elif [ -n "${OWNER[$dep]:-}" ] && [[ " ${OWNER[$dep]} " != *" $crate "* ]]; then
            wrong "$crate must not name $dep: that is for ${OWNER[$dep]}"
        fi
    done < <(jq -r --arg c "$crate" '.packages[] | select(.name == $c) | .dependencies[] | select(.kind == null) | .name' <<<"$meta")
done < <(jq -r '.packages[].name' <<<"$meta")

for crate in "${ENGINE[@]}"; do
    checks=$((checks + 1))
    reached=$(cargo tree -p "$crate" -e normal --prefix none --format '{p}' | awk '{print $1}' | sort -u)
    bad=$(grep -xE "$FORBIDDEN" <<<"$reached" || true)
    [ -z "$bad" ] || wrong "$crate reaches $(tr '\n' ' ' <<<"$bad")"
done

# Programs that only ask the daemon carry none of it.
for crate in hiloop-control hiloop-csi; do
    checks=$((checks + 1))
    reached=$(cargo tree -p "$crate" -e normal --prefix none --format '{p}' | awk '{print $1}' | sort -u)
    bad=$(grep -xE 'hiloop-(engine|store|cache|journal|manifest|rocks|fusefs)|rocksdb|object_store|fuser' <<<"$reached" || true)
    [ -z "$bad" ] || wrong "$crate reaches $(tr '\n' ' ' <<<"$bad")"
done

# Programs and tests ask the crates they share for the same features, so that what is built for one serves the other.
features() { cargo tree --workspace -e "$1" --prefix none --format '{p} {f}' | sed 's/ (\*)$//' | sort -u; }
checks=$((checks + 1))
programs=$(features normal,build)
twice=$(comm -13 <(echo "$programs") <(features normal,build,dev) | while read -r crate version rest; do
    ! grep -q "^$crate $version " <<<"$programs" || echo "$crate $version $rest"
done)
[ -z "$twice" ] || wrong "tests and programs differ in the features of a crate (see the end of benches/Cargo.toml):
$twice"

[ "$failures" -eq 0 ] || exit 1
echo "dependency directions hold: $checks checks"
