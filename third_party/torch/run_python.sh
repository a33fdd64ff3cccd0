#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run_python.sh INTERPRETER FILE ARGS...: pytest over FILE; paths are relative
# to the runfiles, where the test starts.
set -eu
python=$1 main=$2
shift 2
PYTHONPATH="${STRATALLOC_SITE:+$PWD/$STRATALLOC_SITE:}$PWD"
export PYTHONPATH PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
# Tests decide themselves how the allocator gets in.
unset STRATALLOC STRATALLOC_CONF STRATALLOC_STRICT
# The sandbox may leave no home, and some libraries want one.
HOME=${TEST_TMPDIR:-/tmp}
export HOME
set -- -m pytest -q -p no:cacheprovider --rootdir="$PWD" \
  ${XML_OUTPUT_FILE:+--junitxml="$XML_OUTPUT_FILE"} \
  ${TEST_TMPDIR:+--basetemp="$TEST_TMPDIR/pytest"} "$main" "$@"
if [ -n "${PYTHON_PRELOAD:-}" ]; then
  # Our objects are instrumented, python is not: it leaks, and CUDA maps the gap.
  export LD_PRELOAD="$PYTHON_PRELOAD"
  export ASAN_OPTIONS=detect_leaks=0:protect_shadow_gap=0
fi
exec "$python" "$@"
