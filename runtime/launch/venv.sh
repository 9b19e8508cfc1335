#!/usr/bin/env bash
#
# Make sure that an environment has what the given requirements files ask for, and print the path of its Python:
#
#   runtime/launch/venv.sh [--locked] requirements.txt [more/requirements.txt ...]
#
# With --locked, install exactly the versions in the lock file beside each requirements file, such as requirements.lock.
# VENV_DIR names the environment's folder, by default .venv. PYTHON names the interpreter to make it with, by default
# python3.

set -eu

project="$(CDPATH="" cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
readonly project
venv="${VENV_DIR:-$project/.venv}"
if [[ "$venv" != /* ]]; then venv="$PWD/$venv"; fi
readonly venv
suffix=txt options=(--disable-pip-version-check)
if [[ "${1:-}" == --locked ]]; then
  suffix=lock options+=(--require-hashes)
  shift
fi
if [[ ! -t 2 ]]; then options+=(--quiet); fi # a terminal shows pip's progress
export PIP_USER=0 # whatever pip.conf says: an environment has no packages of a user

# Ctrl-C and Ctrl-\ end this script, and not only the command that it has just started.
trap 'exit 130' INT
trap 'exit 131' QUIT

fail() {
  echo "error: $*" >&2
  exit 2
}

# is_suitable PYTHON [MODULE]: return whether a Python is of the right version, and has a module, wherever this is called:
# no pip.py that lies there counts. One that is killed before it answers says nothing of its version.
is_suitable() {
  local status=0
  "$1" -Ic "import sys${2:+, $2}; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))" 2>/dev/null || status=$?
  if ((status >= 128)); then
    echo "error: $1 was ended by signal $((status - 128)) before it reported its version: try again" >&2
    exit "$status"
  fi
  return "$status"
}

version_of() { "$1" -Ic 'import sys; print(sys.version_info[:2])' 2>/dev/null || echo none; }

# Two that make or fill one environment at the same time would break it for each other. Some file systems know no locks.
mkdir -p "$(dirname "$venv")" || fail "$venv cannot be created: set VENV_DIR=/another/folder"
exec 9<"$(dirname "$venv")"
if command -v flock >/dev/null; then
  status=0
  flock --nonblock 9 2>/dev/null || status="$?"
  if ((status == 1)); then
    echo "waiting for another process that sets up $venv" >&2
    flock 9
  fi
fi

# What may pass costs no environment: a file system that is not mounted, a module that is not loaded, another user.
status=0
is_suitable "$venv/bin/python" pip || status="$?"
if [[ -e "$venv/bin/python" || -L "$venv/bin/python" ]] && ((status == 126 || status == 127)); then
  fail "$venv/bin/python cannot be run here: mount, load or reinstall what it needs, or remove $venv, or set" \
    "VENV_DIR=/a/new/folder"
fi

# PYTHON asks for a certain version; another one's environment is of no use then. Nor is it once an upgrade of the system
# has put another version in the place of its Python: that finds none of its packages, and so no pip.
if [[ -e "$venv/unfinished-by-venv.sh" ]] || ((status)) ||
  [[ -n "${PYTHON:-}" && "$(version_of "$PYTHON")" != "$(version_of "$venv/bin/python")" ]]; then
  python="${PYTHON:-python3}"
  is_suitable "$python" || fail "$python is not Python 3.10 to 3.13, or cannot be run; set PYTHON=/path/to/python3"
  if [[ ! -e "$venv/unfinished-by-venv.sh" && ! -e "$venv/made-by-venv.sh" ]] && ! rmdir "$venv" 2>/dev/null &&
    [[ -e "$venv" || -L "$venv" ]]; then
    fail "$venv lacks a Python 3.10 to 3.13 with pip, and this program did not create it: remove it, or set" \
      "VENV_DIR=/a/new/folder"
  fi
  "$python" -c "import ensurepip, venv" 2>/dev/null ||
    fail "$python cannot create an environment: apt install ${python##*/}-venv (Debian, Ubuntu), or set PYTHON"
  if [[ -e "$venv/made-by-venv.sh" ]]; then
    echo "$venv has no suitable Python: creating it again; if something else uses it, set VENV_DIR for one of them" >&2
  fi
  [[ ! -e "$venv" || -w "$venv" ]] || fail "$venv belongs to another user: set VENV_DIR=/a/new/folder"
  rm -rf "$venv"
  mkdir "$venv" || fail "$venv cannot be created: set VENV_DIR=/another/folder"
  touch "$venv/unfinished-by-venv.sh"
  "$python" -m venv "$venv" >&2 || exit 2
  mv "$venv/unfinished-by-venv.sh" "$venv/made-by-venv.sh"
fi
for requirements in "$@"; do
  file="${requirements%.txt}.$suffix"
  installed="$venv/installed/$requirements" # a copy of the file, or of its lock, as it was last installed
  if ! cmp -s "$project/$file" "$installed"; then
    # A package whose installation was killed has no INSTALLER yet, but pip would take it for installed.
    for package in "$venv"/lib/python*/site-packages/*.dist-info; do
      if [[ -e "$venv/made-by-venv.sh" && -d "$package" && ! -e "$package/INSTALLER" ]]; then
        echo "the installation of ${package##*/} was cut off: removing it" >&2
        rm -r "$package"
      fi
    done
    echo "installing $file into $venv; the first time, this downloads TensorFlow, 600 MB" >&2
    "$venv/bin/python" -Im pip install "${options[@]}" -r "$project/$file" >&2 ||
      fail "pip could not install $file into $venv: if its disk is full, set VENV_DIR=/another/folder; if" \
        "${TMPDIR:-/tmp} is full, set TMPDIR"
    if first="$(grep -om1 '^[[:alnum:]][[:alnum:]._-]*' "$project/$requirements")" &&
      ! "$venv/bin/python" -Ic "import importlib.metadata as found; found.version('$first')" 2>/dev/null; then
      fail "pip has put $file somewhere else than into $venv: unset PIP_TARGET, PIP_PREFIX, PIP_ROOT and PIP_DRY_RUN," \
        "and remove target, prefix, root and dry-run from pip.conf"
    fi
    mkdir -p "$(dirname "$installed")"
    cp "$project/$file" "$installed"
  fi
done
echo "$venv/bin/python"
