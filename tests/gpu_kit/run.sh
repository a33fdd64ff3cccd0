#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh [RESULT.json] [ARGUMENTS of kit.py]: the kit's steps, one after the
# other; what RESULT.json has already is not run again. Wants a python3 (or
# $PYTHON) with pytest and a torch that the packed wheel has a bridge for; no
# Bazel, no compiler, no network, nothing installed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
"$python" - "$here/kit.json" <<'CHECK'
import importlib.metadata
import json
import sys
with open(sys.argv[1], encoding="utf-8") as file:
    minors = json.load(file)["minors"]
served = " or ".join(minors)
try:
    version = importlib.metadata.version("torch")
except importlib.metadata.PackageNotFoundError:
    sys.exit("run.sh: this python has no torch; "
             f"set PYTHON to one that has {served}")
if ".".join(version.split(".")[:2]) not in minors:
    sys.exit(f"run.sh: torch {version} here, the kit is for {served}")
CHECK
PYTHONPATH="$here/repository${PYTHONPATH:+:$PYTHONPATH}" \
  exec "$python" -m tests.gpu_kit.kit "$@"
