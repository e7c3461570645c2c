#!/usr/bin/env sh
# Create a virtual environment with the pinned packages and this project:
#   sh requirements/install.sh .venv serve      (or gpu, train, test: the files in this folder)
# Rerun it to complete an unfinished environment.
set -eu
environment=$1
pins=$2
cd "$(dirname "$0")/.."

fits() { # whether a command is a supported Python
  "$@" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
  for candidate in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11 python; do
    if fits "$candidate"; then printf '%s\n' "$candidate"; return; fi
  done
  found="no python3"
  if command -v python3 >/dev/null; then found=$(python3 --version 2>&1 || true); fi
  echo "Python 3.11 or later is needed, found: $found." >&2
  echo "Install one, or set its path: make ... PYTHON=/path/to/python3.13" >&2
  exit 1
}

if ! fits "$environment/bin/python"; then
  python=$(find_python)
  echo "Creating $environment with $("$python" --version)"
  if ! "$python" -m venv --clear "$environment"; then
    echo "Python's venv module does not work; on Debian and Ubuntu: apt-get install python3-venv" >&2
    exit 1
  fi
fi

echo "Installing requirements/$pins.txt into $environment (the first time this downloads the packages)"
# PIP_USER in a user's configuration would install the packages elsewhere
PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_USER PIP_DISABLE_PIP_VERSION_CHECK
"$environment/bin/python" -m pip install --quiet --require-hashes \
  -r requirements/build.txt -r "requirements/$pins.txt"
"$environment/bin/python" -m pip install --quiet --no-deps --no-build-isolation --editable .
touch "$environment/.installed"
# One attempt to download the better face detector; without a network the built-in one serves.
case $pins in serve | gpu) "$environment/bin/python" -m mien models pull || true ;; esac
