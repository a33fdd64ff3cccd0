# SPDX-License-Identifier: Apache-2.0
"""Build backend of PEP 517: `pip install .` in a clone calls Bazel.

The wheel has one bridge, for the torch of the environment that pip installs
into. `pip install -v .` shows the progress; without -v pip hides it. Errors:
one line, by SystemExit, which pip shows under its own. Standard library only.

Source distributions are not supported: a clone has what a build needs, and an
unpacked archive would compile everything again.
"""

import os
import shutil
import subprocess
import sys

import build_environment
import build_needs
import build_tools

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))


def get_requires_for_build_wheel(config_settings=None):
    """nvcc, where the machine has no toolkit. What pip cannot install is
    missing here already, before anything is downloaded."""
    _checked(config_settings)
    if build_needs.cuda_toolkit(_ROOT):
        return []
    return build_needs.listed(_ROOT, "third_party/pip/cuda.txt")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds the wheel; its name in `wheel_directory`."""
    del metadata_directory
    python, torch = _checked(config_settings)
    toolkit = build_needs.cuda_toolkit(_ROOT)
    if not toolkit:
        raise SystemExit(
            "stratalloc: nvcc is missing: set CUDA_HOME to a CUDA toolkit, or "
            "pip install -r third_party/pip/cuda.txt")
    headers = os.path.join(toolkit, "include")
    whole = not build_needs.missing_cuda(headers)
    missing = build_needs.missing_cuda(headers, torch.cuda_headers)
    if missing:
        raise SystemExit(_without_headers(torch, missing))
    print(f"stratalloc: building for torch {torch.version} of {python}, with "
          f"{toolkit}/bin/nvcc", file=sys.stderr, flush=True)
    options = [f"--repo_env=TORCH_HEADERS={torch.folder}",
               f"--repo_env=CUDA_HOME={toolkit}",
               f"--repo_env=STRATALLOC_PYTHON={python}"]
    if not whole:
        options.append(f"--repo_env=CUDA_HEADERS={torch.cuda_headers}")
    environment = build_needs.environment_of_bazel(_ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "tests.repository.report.run", "build", *options,
         "//python_shim/wheel"], cwd=_ROOT, env=environment, check=False,
        stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit("stratalloc: the build failed (exit code "
                         f"{done.returncode}); the reason is above")
    found = subprocess.run(
        ["bazel", "info", "bazel-bin", *options], cwd=_ROOT, env=environment,
        check=True, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    folder = os.path.join(found.stdout.strip(), "python_shim", "wheel")
    (name,) = build_needs.listed(folder, "wheel.name")
    os.makedirs(wheel_directory, exist_ok=True)
    shutil.copy(os.path.join(folder, name), wheel_directory)
    return name


def build_editable(wheel_directory, config_settings=None,
                   metadata_directory=None):
    """Refuses."""
    del wheel_directory, config_settings, metadata_directory
    raise SystemExit(
        "stratalloc: there is no editable installation, since Bazel compiles "
        "its libraries: run pip install . again after each change")


def build_sdist(sdist_directory, config_settings=None):
    """Refuses."""
    del sdist_directory, config_settings
    raise SystemExit("stratalloc: there is no source distribution; install "
                     "from a clone, with pip install .")


def _checked(config_settings):
    """(interpreter, its torch), or a line for the user on what is missing."""
    wrong = build_needs.wrong_interpreter()
    if wrong:
        raise SystemExit(
            f"stratalloc: {sys.executable} is {wrong}: install into CPython "
            "with a global lock, on Linux x86-64")
    found = _torch(config_settings)
    missing = build_needs.missing_packages(_ROOT)
    if missing:
        raise SystemExit("stratalloc: the build needs packages that are "
                         f"missing: apt-get install {' '.join(missing)}")
    fault = build_tools.fault(_ROOT, build_needs.cuda_toolkit(_ROOT))
    if fault:
        raise SystemExit(f"stratalloc: {fault}")
    try:
        build_needs.check_writable(_ROOT)
    except OSError as error:
        raise SystemExit(
            f"stratalloc: the build cannot write into {_ROOT}: "
            f"{error.strerror}: install from a clone that this user may write "
            "to") from None
    return found


def _without_headers(torch, missing):
    """The line on headers of CUDA; PyPI's packages of them are for CUDA 13."""
    way = "set CUDA_HOME to a toolkit that has them (only compiling needs them)"
    if torch.cuda.startswith("13."):
        way = f"pip install {' '.join(missing.values())} beside torch, or {way}"
    return f"stratalloc: headers of CUDA are missing, {', '.join(missing)}: {way}"


def _torch(config_settings):
    """(interpreter, its torch), or a line for the user."""
    named = (config_settings or {}).get("torch-python")
    # The probe runs in another folder.
    pythons = ([os.path.abspath(shutil.which(named) or named)] if named
               else build_environment.pythons())
    for python in pythons:
        torch = build_needs.torch_of(python)
        if not torch:
            continue
        known = build_needs.listed(_ROOT, "third_party/torch/minors.txt")
        minors = [release.rpartition(".")[0] for release in known]
        if not torch.cuda:
            raise SystemExit(
                f"stratalloc: torch {torch.version} of {python} is built "
                f"without CUDA: uninstall it, and install torch {minors[0]} to "
                f"{minors[-1]} for CUDA (pip install torch, from PyPI)")
        _check_release(python, torch, minors)
        return python, torch
    way = "pass --config-settings=torch-python=PATH of the Python that has it"
    if not pythons:
        raise SystemExit("stratalloc: nothing says which environment's torch "
                         f"the wheel is for: {way}")
    raise SystemExit(f"stratalloc: {', '.join(pythons)} has no torch: install "
                     f"torch there, or {way}")


def _check_release(python, torch, minors):
    """What the runtime asks of a torch (_native/bridge.py), before compiling."""
    releases = build_needs.releases(_ROOT)
    minor = releases.minor_of(torch.version)
    if not minor:
        raise SystemExit(f"{releases.not_a_release(torch.version)}: install "
                         f"one into the environment of {python}, "
                         f"{releases.reinstallation(minors)}")
    if minor not in minors:
        raise SystemExit(
            f"stratalloc: there is no bridge for torch {torch.version} of "
            f"{python}: install torch {minors[0]} to {minors[-1]}")
