#!/bin/sh
# Makes the Rust twins of our C headers. With --check, changes nothing and fails where one is stale.
#
# Needs bindgen (`cargo install bindgen-cli --version 0.72.1 --locked`) and the libclang it uses.
set -eu
cd "$(dirname "$0")/.."

if [ "${1:-}" = --check ]; then check=yes; fi
if ! command -v bindgen >/dev/null; then
    missing="bindgen is not here: cargo install bindgen-cli --version 0.72.1 --locked"
    # The tests compare header and constants without it; this check adds that bindgen reads them so.
    if [ "${check:-}" ]; then echo "not run: $missing"; exit 0; fi
    echo "$missing" >&2
    exit 2
fi

stale=0
twin() { # header, Rust file, further arguments of bindgen
    header=$1 twin=$2
    shift 2
    made=$(mktemp)
    bindgen "$header" --output "$made" --disable-header-comment \
        --raw-line "// Made of $header by scripts/bindgen.sh." "$@"
    if [ "${check:-}" ]; then
        cmp -s "$made" "$twin" || { echo "$twin is stale: run scripts/bindgen.sh" >&2; stale=1; }
    else
        cat "$made" >"$twin"
    fi
    rm "$made"
}

twin ggml-types/include/ggml_type_ids.h ggml-types/src/ids.rs
twin cuda/params.h src/backend/cuda/params.rs --allowlist-file cuda/params.h
exit $stale
