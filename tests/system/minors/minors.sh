#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the suites under each minor of PyTorch; sourced by `dev`, not run.
#
#   verb_minors [--keep] [2.N ...]
#
# Each minor's results are in $BUILD/minors/2.N.json; a venv goes when its tests
# have run. What has passed is kept in the cache: started again, it goes on.
#
# Uses say, die, ensure, bazel_quiet, own_release, PYTHON, BUILD and what
# install.sh has.

verb_minors() {
  local keep=0 wanted=() results=() status=0 minor version python
  while [[ $# -gt 0 ]]; do
    case $1 in
      --keep) keep=1 ;;
      2.*) wanted+=("$1") ;;
      *) die "minors takes --keep and minors like 2.12, not $1" ;;
    esac
    shift
  done
  local -A versions=()
  while read -r version; do
    versions[${version%.*}]=$version
  done < <(listed torch/minors.txt)
  [[ ${#wanted[@]} -gt 0 ]] || mapfile -t wanted < <(
    printf '%s\n' "${!versions[@]}" | sort -V
  )
  for minor in "${wanted[@]}"; do
    [[ -v versions[$minor] ]] || die "no wheel known for $minor"
  done
  ensure build tests
  forget_other_trees
  for minor in "${wanted[@]}"; do
    # No $(...): its jobs would outlive a Ctrl-C.
    if ! minor_python "${versions[$minor]}"; then
      say "torch $minor is not installed; the other minors go on"
      status=1
      continue
    fi
    test_minor "$minor" "$python" || status=1
    [[ $keep -eq 1 || $python == "$PYTHON" ]] ||
      rm -rf "$BUILD/minors/venv-$minor"
  done
  mapfile -t results < <(compgen -G "$BUILD/minors/2.*.json" | sort -V)
  [[ ${#results[@]} -gt 0 ]] || die "no minor has results"
  python3 -m tests.system.minors.table "$BUILD/minors/table.md" \
    "${results[@]}" || status=1
  say "writing tests/simulator/cudasim/COVERAGE.md"
  rewrite_tree bazel_quiet run //tests/simulator/cudasim/coverage:table
  return $status
}

# tree_digest: of all files here that git does not ignore; fails without git.
tree_digest() {
  git ls-files -coz --exclude-standard 2>/dev/null |
    # One that is deleted has no line; that is a change, too.
    { xargs -0 sha256sum -- 2>/dev/null || true; } | digest
}

# The table never mixes results of two trees. Without git nothing says which
# tree a result is of.
forget_other_trees() {
  local tree=""
  mkdir -p "$BUILD/minors"
  if ! tree=$(tree_digest) || ! is_stamped minors "$tree"; then
    rm -f "$BUILD"/minors/2.*.json
  fi
  stamp minors "$tree"
}

# rewrite_tree COMMAND...: of a command that writes files of the tree. The
# results stay those of this tree, unless another change came between.
rewrite_tree() {
  local tree="" status=0
  if ! tree=$(tree_digest) || ! is_stamped minors "$tree"; then tree=""; fi
  "$@" || status=$?
  [[ -z $tree ]] || stamp minors "$(tree_digest)"
  return $status
}

# minor_python VERSION: `python` is an interpreter with that torch, .venv's or
# that of a venv made for it.
minor_python() {
  local venv="$BUILD/minors/venv-${1%.*}" wanted
  python=$PYTHON
  [[ $1 != "$(own_release)" ]] || return 0
  python="$venv/bin/python"
  wanted=$({ echo "$1" && minor_packages &&
    listed pip/build-alone.txt pip/tests-alone.txt; } | digest)
  ! is_stamped ready "$wanted" "$venv" || return 0
  # Before there were digests the file was empty.
  if [[ -f $venv/ready && ! -s $venv/ready ]] && "$python" -c "import sys
from importlib.metadata import version
sys.exit(version('torch').split('+')[0] != '$1')"; then
    stamp ready "$wanted" "$venv"
    return
  fi
  say "installing torch $1 into ${venv#"$PWD"/} (some minutes)"
  rm -rf "$venv"
  start "torch-${1%.*}" install_minor "$1" "$venv"
  await_jobs || return
  stamp ready "$wanted" "$venv"
}

# .venv's packages, without torch, and with the torchvision of any.
minor_packages() {
  listed pip/build.txt pip/tests.txt |
    sed '/^torch==/d; s/^torchvision==.*/torchvision/'
}

# install_minor VERSION VENV: .venv's packages, and the torchvision that belongs
# to the torch.
install_minor() {
  local others
  "$PYTHON" -m venv "$2" || return
  mapfile -t others < <(minor_packages)
  uv_install --python "$2/bin/python" "torch==$1" "${others[@]}" &&
    uv_install --python "$2/bin/python" --no-deps \
      -r third_party/pip/build-alone.txt -r third_party/pip/tests-alone.txt
}

# test_minor MINOR PYTHON: the suites, and what the wheel wants of CUDA.
test_minor() {
  local site status=0
  say "building and running the suites under torch $1"
  python3 -m tests.repository.report.run --json "$BUILD/minors/$1.json" \
    --seconds "$BUILD/minors/seconds.json" test --keep_going \
    --disk_cache="$BUILD/cache" "--repo_env=TORCH_PYTHON=$2" \
    //tests/system/minors </dev/null || status=1
  site=$("$2" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  rewrite_tree python3 tests/simulator/cudasim/coverage/generate.py \
    "$1=$site" >&2 || status=1
  return $status
}
