#!/usr/bin/env bash
# The set-up that scripts/demo and scripts/test share. They source it and call `set_up`; it also runs on its own:
#
#   scripts/setup.sh          the runtime packages, with the server
#   scripts/setup.sh dev      every extra, all that the tests need
#
# It makes .venv in the checkout, installs the project there in place, and fetches the built-in model's base weights
# into the user's cache. Once that is done, it returns at once until pyproject.toml or this file changes.
#
# Where packages come from is the environment's choice: pip's own settings (PIP_INDEX_URL, PIP_FIND_LINKS, pip.conf)
# apply. It matters for torch, which the tests compare with: the plain package for Linux is a CUDA build of several
# gigabytes, and an index or a folder of wheels with the CPU build saves the download.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"
STAMP="$VENV/.set-up"            # "HASH core|dev ROOT": what the last complete set-up installed, and for which checkout
UNFINISHED="$VENV/.unfinished"   # stands while an install runs: found at the start, that install was cut short
LOG="$VENV/set-up.log"

say() { printf '%s\n' "$*" >&2; }

# Prints the command of a Python that can make the environment.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.13 python3.12 python3.11 python3; do
        if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    say "sysone-jax needs Python 3.11 or later with its venv module; python3 here is: $(python3 --version 2>&1 || true)"
    say "Install one (Debian, Ubuntu: apt install python3 python3-venv), or name it: PYTHON=/path/to/python3 $0"
    return 1
}

# Prints a hash of what decides the installed packages. Fails where the environment's Python does not run.
project_hash() {
    "$VENV/bin/python" -c '
import hashlib, sys
import pip  # an environment without it cannot be completed
print(hashlib.sha256(b"".join(open(path, "rb").read() for path in sys.argv[1:])).hexdigest())
' "$ROOT/pyproject.toml" "$ROOT/scripts/setup.sh" 2>/dev/null
}

# set_up core|dev
set_up() {
    local extra="$1" hash="" old_hash="" old_extra="" old_root="" python
    if [[ -e "$STAMP" ]]; then
        read -r old_hash old_extra old_root <"$STAMP" || true
    fi
    # A virtual environment holds its own path in every script, so one that moved with its checkout is broken too.
    if [[ -e "$VENV" ]] &&
        { [[ -e "$UNFINISHED" || "${old_root:-$ROOT}" != "$ROOT" ]] || ! hash="$(project_hash)"; }; then
        say "The virtual environment in .venv is incomplete: making a new one."
        rm -rf "$VENV"
        old_hash="" old_extra=""
    fi
    if [[ ! -e "$VENV" ]]; then
        python="$(find_python)"
        say "Making a virtual environment in .venv with $("$python" --version)."
        mkdir "$VENV"
        touch "$UNFINISHED"
        "$python" -m venv "$VENV"
        hash="$(project_hash)"
    fi
    if [[ "$old_extra" == dev ]]; then
        extra=dev # never take away what an earlier set-up gave
    fi
    if [[ "$hash" != "$old_hash" || "$extra" != "$old_extra" || ! -x "$VENV/bin/sysone" ]]; then
        install "$extra"
        printf '%s %s %s\n' "$hash" "$extra" "$ROOT" >"$STAMP"
        rm "$UNFINISHED"
        say "Installed."
    fi
    "$VENV/bin/sysone" pull sysone-mini
}

# install core|dev
install() {
    local target=".[serve]"
    if [[ "$1" == dev ]]; then
        target=".[dev]"
        say "Installing sysone-jax and all that its tests need. The first time takes some minutes; log: .venv/set-up.log"
    else
        say "Installing sysone-jax. The first time takes a minute or two; log: .venv/set-up.log"
    fi
    touch "$UNFINISHED"
    if ! (cd "$ROOT" && "$VENV/bin/python" -m pip install --disable-pip-version-check -e "$target") >"$LOG" 2>&1; then
        tail -n 5 "$LOG" >&2
        say "The install failed: the lines above and .venv/set-up.log say why. The same command tries again."
        return 1
    fi
    if [[ "$1" == dev ]]; then
        install_libtpu || say "libtpu cannot be installed here, so the test that compiles for a TPU is left out."
    fi
}

# The compiler for TPUs, for the memory plan. It stands beside the packages: among them, jax would look for a TPU.
install_libtpu() {
    local pinned
    pinned="$("$VENV/bin/python" -c '
import sys, tomllib
print(tomllib.load(open(sys.argv[1], "rb"))["project"]["optional-dependencies"]["tpu"][0])
' "$ROOT/pyproject.toml")"
    "$VENV/bin/python" -m pip install --disable-pip-version-check --upgrade --no-deps --target "$VENV/libtpu" "$pinned" \
        >>"$LOG" 2>&1
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
    set_up "${1:-core}"
fi
