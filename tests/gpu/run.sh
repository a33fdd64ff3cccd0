#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh [OUT.json] [ARGS of kit.py]: everything the kit can show on this
# machine. Wants a python3 (or $PYTHON) with torch 2.11 and pytest; no Bazel, no
# compiler, no network, nothing installed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
out=gpu-kit.json
case ${1:-} in
  "" | -*) ;;
  *)
    out=$1
    shift
    ;;
esac
"$python" - <<'CHECK'
import sys
try:
    import torch
except ImportError:
    sys.exit("run.sh: this python has no torch; set PYTHON to one that has 2.11")
if not torch.__version__.startswith("2.11."):
    sys.exit(f"run.sh: torch {torch.__version__} here, the kit is for 2.11")
CHECK
exec "$python" "$here/kit.py" --out "$out" "$@"
