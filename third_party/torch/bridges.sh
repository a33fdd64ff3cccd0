#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the bridges of several minors of PyTorch; sourced by `dev`, not run.
#
#   releases                    those of minors.txt, that of .venv last: what is
#                               built behind it finds Bazel as it was
#   build_bridges FOLDER RELEASE... -- OPTION...
#                               leaves them in FOLDER, which is made anew; ends
#                               the program if a build fails
#
# Uses say, listed, run_and_report, bazel_build, bazel_bin, PYTHON and BUILD.

# The targets, and the files that they make for a minor, as 2_11.
readonly BRIDGES=(//python_shim/torch_bridge:bridge
  //python_shim/torch_bridge/bench:library
  //tests/simulator/cudasim/operator_bridge:library)
bridge_files() {
  echo "python_shim/torch_bridge/libstratalloc_torch_$1.so"
  echo "python_shim/torch_bridge/bench/libstratalloc_bench_torch_$1.so"
  echo "tests/simulator/cudasim/operator_bridge/libcudasim_torch_$1.so"
}

own_release() { sed -n 's/^torch==//p' third_party/pip/build.txt; }
releases() {
  listed torch/minors.txt | grep -vxF "$(own_release)" || true
  own_release
}

# One build per minor; all but that of .venv from headers alone.
build_bridges() {
  local release options minor file folder=$1 wanted=()
  shift
  while [[ $1 != -- ]]; do
    wanted+=("$1")
    shift
  done
  shift
  rm -rf "$folder"
  mkdir -p "$folder"
  for release in "${wanted[@]}"; do
    options=("$@")
    if [[ $release != "$(own_release)" ]]; then
      run_and_report "headers-$release" "$PYTHON" third_party/torch/headers.py \
        "$release" "$BUILD/torch"
      options+=("--repo_env=TORCH_HEADERS=$BUILD/torch/$release")
    fi
    say "building the bridges for torch $release"
    bazel_build "${options[@]}" "${BRIDGES[@]}"
    minor=${release%.*}
    while read -r file; do
      install "$(bazel_bin)/$file" "$folder"
    done < <(bridge_files "${minor/./_}")
  done
}
