#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh [RESULT.json] [ARGUMENTS of kit.py]: the kit's steps, one after the
# other; what RESULT.json has already is not run again. Wants a python3 (or
# $PYTHON) with torch 2.11 and pytest; no Bazel, no compiler, no network, nothing
# installed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
"$python" - <<'CHECK'
import importlib.metadata
import sys
try:
    version = importlib.metadata.version("torch")
except importlib.metadata.PackageNotFoundError:
    sys.exit("run.sh: this python has no torch; set PYTHON to one that has 2.11")
if not version.startswith("2.11."):
    sys.exit(f"run.sh: torch {version} here, the kit is for 2.11")
CHECK
PYTHONPATH="$here/repository${PYTHONPATH:+:$PYTHONPATH}" \
  exec "$python" -m tests.gpu_kit.kit "$@"
