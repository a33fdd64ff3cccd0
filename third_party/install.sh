#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the lists of this folder; sourced by `dev`, not run.
#
#   begin_installing SET...   starts what is missing of the sets `build`,
#                             `tests` and `long`; returns once Bazel and a
#                             compiler work
#   finish_installing         waits for the rest; ends the program if it failed
#
# The lists of a set are apt/SET.txt, pip/SET.txt and pip/SET-alone.txt; `long`
# has the second alone. What is there already costs nothing. Uses say, die,
# VENV, PYTHON, STAMPS and BUILD.

readonly UV="$VENV/bin/uv"
readonly TOOLKIT="$VENV/cuda"    # CUDA's, where the machine has none
readonly TICK="${DEV_TICK:-25}"  # seconds between two lines on what runs

declare -A jobs=()    # name: process; its output is in $BUILD/NAME.log
declare -A stamps=()  # what finish_installing writes when all has worked
sync=0                # 1: Bazel has to look at the machine again

listed() { grep -hv '^#' "${@/#/third_party/}"; }

digest() { cat "$@" | sha256sum | cut -d' ' -f1; }

# is_stamped NAME DIGEST [FOLDER]: whether this step ran for just these inputs.
is_stamped() {
  local file="${3:-$STAMPS}/$1"
  [[ -f $file && $(<"$file") == "$2" ]]
}
stamp() {
  mkdir -p "${3:-$STAMPS}"
  printf '%s' "$2" >"${3:-$STAMPS}/$1"
}

# ---- Jobs in the background -------------------------------------------------

# start NAME COMMAND...
start() {
  set -m  # a group of its own, which end_jobs can end as one
  "${@:2}" >"$BUILD/$1.log" 2>&1 </dev/null &
  set +m
  jobs[$1]=$!
}

# Ends what still runs when the program ends, after Ctrl-C too: a second `dev`
# would install beside it.
end_jobs() {
  local name
  for name in "${!jobs[@]}"; do
    kill -- "-${jobs[$name]}" 2>/dev/null || true
  done
}
trap end_jobs EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Ends the program if one failed.
wait_for_jobs() { await_jobs || exit; }

# Waits for all jobs; every 30 seconds a line says what they are at. 1 after the
# end of the output of those that failed.
await_jobs() {
  [[ ${#jobs[@]} -gt 0 ]] || return 0
  local name failed="" ticker
  # It ends when this end of the pipe is closed, by whatever.
  exec {ticker}> >(report_jobs "${!jobs[@]}")
  for name in "${!jobs[@]}"; do
    wait "${jobs[$name]}" || failed+=" $name"
  done
  exec {ticker}>&-
  jobs=()
  for name in $failed; do
    tail -n 20 "$BUILD/$name.log" >&2
  done
  [[ -z $failed ]] || {
    say "failed:$failed; all of it: build/*.log"
    return 1
  }
}

# run_and_report NAME COMMAND...: the end of its output is shown if it fails.
run_and_report() {
  start "$@"
  wait_for_jobs
}

report_jobs() {
  local began=$SECONDS name state
  while true; do
    state=0
    read -rt "$TICK" || state=$?
    [[ $state -gt 128 ]] || return 0  # the end of the pipe, not of the time
    for name in "$@"; do
      # One that has ended is Z, or gone; wait_for_jobs waits for another one.
      state=Z
      { read -r _ _ state _ <"/proc/${jobs[$name]}/stat"; } 2>/dev/null || true
      [[ $state != Z ]] || continue
      say "$name, for $((SECONDS - began)) s:" "$(tail -n 1 "$BUILD/$name.log")"
    done
  done
}

# ---- System packages --------------------------------------------------------

missing_packages() {
  command -v dpkg-query >/dev/null || return 0
  local package
  for package in $(listed "apt/$1.txt"); do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null |
      grep -q 'ok installed' || printf '%s ' "$package"
  done
}

# Programs out of packages that are not installed for them: prometheus would
# start a server, and be started by every boot, for the one that lints.
missing_programs() {
  command -v apt-get >/dev/null || return 0
  local program rest
  while read -r program rest; do
    command -v "$program" >/dev/null || [[ -x $VENV/bin/$program ]] ||
      echo "$program $rest"
  done < <(listed apt/programs.txt)
}

# as_root COMMAND...: with sudo where this is not root.
as_root() {
  if [[ $EUID -eq 0 ]]; then "$@"; else sudo "$@"; fi
}

# may_install PACKAGES: ends the program where nobody can become root.
may_install() {
  [[ $EUID -ne 0 ]] || return 0
  if ! command -v sudo >/dev/null ||
    { ! sudo -n true 2>/dev/null && [[ ! -t 0 ]]; }; then
    die "system packages are missing and this is not root; run once:
  sudo sh -c 'apt-get update && apt-get install -y $1'"
  fi
  sudo -v  # asks here, not in the background
}

# apt_install PACKAGE...
apt_install() {
  as_root apt-get update -q &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
      --no-install-recommends "$@"
}

# take_programs LINE...: as in apt/programs.txt
take_programs() {
  local line program package path folder
  for line in "$@"; do
    read -r program package path <<<"$line"
    folder=$(mktemp -d)
    (
      cd "$folder" &&
        { apt-get download -q "$package" ||
          { as_root apt-get update -q && apt-get download -q "$package"; }; } &&
        dpkg-deb -x "$package"_*.deb . &&
        install "$path" "$VENV/bin/$program"
    ) || return
    rm -rf "$folder"
  done
}

# The packages of the set `tests` and the programs, one after the other: apt
# has a lock.
install_for_tests() {
  local packages=$1
  # shellcheck disable=SC2086  # a list of words
  [[ -z $packages ]] || apt_install $packages || return
  take_programs "${@:2}"
}

# ---- Python packages --------------------------------------------------------

has_nvcc() {
  [[ -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]] ||
    [[ -x $TOOLKIT/nvidia/cu13/bin/nvcc ]]
}

# uv reads no setting of pip's; where packages come from is the machine's. pip
# lists its environment before its files: the first value counts.
use_settings_of_pip() {
  local -A variables=([index-url]=UV_DEFAULT_INDEX [extra-index-url]=UV_INDEX
    [find-links]=UV_FIND_LINKS [cert]=SSL_CERT_FILE [timeout]=UV_HTTP_TIMEOUT)
  local name value
  while IFS='=' read -r name value; do
    name=${variables[${name##*.}]:-}
    [[ -z $name || -n ${!name:-} ]] || export "$name=${value//\'/}"
  done < <("$PYTHON" -m pip config list)
}

# uv_install ARGUMENTS: into .venv, unless they name another interpreter.
uv_install() {
  use_settings_of_pip
  "$UV" pip install --python "$PYTHON" "$@" </dev/null
}

# The minors of Python 3 that the lists have wheels for.
readonly PYTHONS=(14 13 12 11)

# The first interpreter that .venv's packages have wheels for; it can make one.
# A free-threaded one has other wheels.
base_python() {
  local python
  for python in python3 "${PYTHONS[@]/#/python3.}"; do
    if "$python" -c 'import ensurepip, sys, sysconfig
sys.exit(sys.version_info[:2] not in [(3, int(minor)) for minor in sys.argv[1:]]
         or bool(sysconfig.get_config_var("Py_GIL_DISABLED")))' \
      "${PYTHONS[@]}" >/dev/null 2>&1; then
      echo "$python"
      return
    fi
  done
  return 1
}

# Ends the program if .venv is of another Python, as older clones made it. The
# names of its folders say so without starting it: python3.10, python3.14t.
check_venv() {
  local found minor
  mapfile -t found < <(compgen -G "$VENV/lib/python3*")
  [[ ${#found[@]} -gt 0 ]] || return 0
  for minor in "${PYTHONS[@]}"; do
    [[ " ${found[*]##*/} " != *" python3.$minor "* ]] || return 0
  done
  die ".venv is of ${found[*]##*/}, and its packages have wheels for Python" \
    "3.${PYTHONS[-1]} to 3.${PYTHONS[0]} with a global lock:" \
    "rm -rf .venv, and it is made again"
}

ensure_venv() {
  local wanted python
  check_venv
  if [[ ! -x $PYTHON ]]; then
    python=$(base_python) ||
      die "torch needs Python 3.${PYTHONS[-1]} to 3.${PYTHONS[0]} with a global" \
        "lock: install one and its module venv, as apt-get install" \
        "python3.${PYTHONS[-1]}-venv does"
    say "creating .venv"
    "$python" -m venv "$VENV"
  fi
  wanted=$(digest third_party/pip/installer.txt)
  if ! is_stamped installer "$wanted"; then
    say "installing $(listed pip/installer.txt)"
    "$PYTHON" -m pip install --quiet --no-input --disable-pip-version-check \
      --root-user-action=ignore -r third_party/pip/installer.txt </dev/null
    stamp installer "$wanted"
  fi
}

# pip_lists SET: its lists, without third_party/.
pip_lists() {
  echo "pip/$1.txt"
  [[ ! -f third_party/pip/$1-alone.txt ]] || echo "pip/$1-alone.txt"
}

# python_packages SET...: by name and version.
python_packages() {
  local set lists
  for set in "$@"; do
    mapfile -t lists < <(pip_lists "$set")
    listed "${lists[@]}"
  done | xargs
  has_nvcc || echo nvcc
}

# install_python SET...
install_python() {
  local set list with=() alone=()
  for set in "$@"; do
    for list in $(pip_lists "$set"); do
      case $list in
        *-alone.txt) alone+=(-r "third_party/$list") ;;
        *) with+=(-r "third_party/$list") ;;
      esac
    done
  done
  uv_install "${with[@]}" || return
  [[ ${#alone[@]} -eq 0 ]] || uv_install --no-deps "${alone[@]}" || return
  # Apart from the libraries of CUDA that torch came with: of another release.
  has_nvcc || uv_install --target "$TOOLKIT" -r third_party/pip/cuda.txt
}

# Tests write no bytecode, and each would compile what it imports.
compile_bytecode() {
  local wanted
  wanted=$(digest "$STAMPS"/python-*)
  is_stamped bytecode "$wanted" || {
    nice "$PYTHON" -m compileall -q "$VENV"/lib/python*/site-packages || true
    stamp bytecode "$wanted"
  } >"$BUILD/bytecode.log" 2>&1 </dev/null &
}

# ---- What is missing --------------------------------------------------------

begin_installing() {
  local packages programs=() set lists python=()
  mkdir -p "$BUILD"
  # Some containers have no home; Bazel, uv and pip want one.
  if [[ -z ${HOME:-} || ! -w ${HOME:-/nonexistent} ]]; then
    export HOME="$BUILD/home"
    mkdir -p "$HOME"
  fi
  if command -v apt-get >/dev/null; then
    packages=$(missing_packages build)
    if [[ -n $packages ]]; then
      may_install "$packages"
      say "installing system packages: $packages"
      # shellcheck disable=SC2086  # a list of words
      start apt apt_install $packages
      wait_for_jobs
      sync=1
    fi
  elif ! command -v bazel >/dev/null; then
    die "no apt here: install Bazel 4 to 7 and third_party/apt/build.txt"
  fi
  ensure_venv
  if [[ " $* " == *" tests "* ]]; then
    packages=$(missing_packages tests)
    mapfile -t programs < <(missing_programs)
    if [[ -n $packages || ${#programs[@]} -gt 0 ]]; then
      may_install "$packages"
      say "installing what tests start: $packages${programs[*]%% *}"
      start apt install_for_tests "$packages" "${programs[@]}"
    fi
  fi
  for set in "$@"; do
    mapfile -t lists < <(pip_lists "$set")
    stamps[python-$set]=$(digest "${lists[@]/#/third_party/}")
    is_stamped "python-$set" "${stamps[python-$set]}" || python+=("$set")
  done
  if [[ ${#python[@]} -gt 0 ]] || ! has_nvcc; then
    say "installing into .venv: $(python_packages "${python[@]}")"
    start python install_python "$@"
    sync=1
  fi
}

finish_installing() {
  local name
  wait_for_jobs
  for name in "${!stamps[@]}"; do
    stamp "$name" "${stamps[$name]}"
  done
  [[ ! -v stamps[python-tests] ]] || compile_bytecode
  # Bazel looks for libraries once; after an installation it looks again.
  if [[ $sync -eq 1 ]]; then
    say "telling Bazel what was installed"
    bazel_quiet sync --configure
  fi
}
