#!/bin/sh
# Makes the Rust twins of our C headers. With --check, changes nothing and fails where one is stale.
#
# Needs the libclang that bindgen uses.
set -eu
cd "$(dirname "$0")/.."
if [ "${1:-}" = --check ]; then
    cargo test --quiet --locked --package twins
else
    cargo run --quiet --locked --package twins
fi
