#!/usr/bin/env bash
# Cargo's RUSTC_WORKSPACE_WRAPPER for fuzzing: our crates are compiled with libFuzzer's coverage counters, and nothing else is, so that
# the target directory keeps one build of all that is not ours (RocksDB among it).
set -euo pipefail
rustc=$1
shift
flags=(
    --cfg fuzzing
    -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares
)
# What runs while building is not linked with libFuzzer; cargo's questions to rustc name no crate.
case " $* " in
    *" build_script_build "* | *" proc-macro "* | *" -vV "* | *" --print="*) flags=() ;;
esac
exec "$rustc" "$@" "${flags[@]}"
