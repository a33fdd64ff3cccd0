#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run_python.sh INTERPRETER ARGS...: the interpreter over ARGS, in the
# environment of a test; paths are relative to the runfiles, where it starts.
set -eu
python=$1
shift
PYTHONPATH="${STRATALLOC_SITE:+$PWD/$STRATALLOC_SITE:}$PWD"
export PYTHONPATH PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
# Tests decide themselves how the allocator gets in.
unset STRATALLOC STRATALLOC_CONF STRATALLOC_STRICT
# The sandbox may leave no home, and some libraries want one.
HOME=${TEST_TMPDIR:-/tmp}
export HOME
if [ -n "${PYTHON_PRELOAD:-}" ]; then
  # Our objects are instrumented, python is not: it leaks, and CUDA maps the gap.
  export LD_PRELOAD="$PYTHON_PRELOAD"
  export ASAN_OPTIONS=detect_leaks=0:protect_shadow_gap=0
fi
exec "$python" "$@"
