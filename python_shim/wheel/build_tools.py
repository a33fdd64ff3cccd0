# SPDX-License-Identifier: Apache-2.0
"""Checks of the versions of a build's tools: Bazel, the compiler of C++, nvcc.

Each tool is asked what it can do, in a fraction of a second, since a build finds
out only after minutes. Standard library only.
"""

import os
import re
import subprocess

BAZEL_PACKAGES = ("bazel-bootstrap", "bazel-rules-java", "bazel-rules-proto")
# Only the WORKSPACE names the repositories; Bazel 8 does not read that.
_OLDEST_BAZEL, _NEWEST_BAZEL = 4, 7
_CPP20 = 202002


def environment() -> dict[str, str]:
    """Without what pip sets for its own interpreter."""
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PIP_", "PEP517_"))}


def missing_rules(root: str) -> list[str]:
    """Packages with the rule sets that Debian's Bazel, which has no version,
    is given by repositories.bzl; a release has them in itself."""
    if _version_of_bazel(root)[0] != "no_version":
        return []
    path = os.path.join(root, "third_party", "repositories.bzl")
    with open(path, encoding="utf-8") as file:
        rules = re.findall(r'name = "(\w+)",\s+path = "(/[^"]+)"', file.read())
    return ["bazel-" + name.replace("_", "-") for name, folder in rules
            if not os.path.isdir(folder)]


def fault(root: str, toolkit: str) -> str:
    """What is wrong with a tool and how to get another, "" for nothing.

    Args:
      root: the clone.
      toolkit: the folder of CUDA's, "" where pip will install one.
    """
    return (_fault_of_bazel(root) or _fault_of_compiler() or
            (_fault_of_nvcc(toolkit) if toolkit else ""))


def _fault_of_bazel(root: str) -> str:
    version, reason = _version_of_bazel(root)
    if version == "no_version":
        return ""
    way = (f"this clone needs Bazel {_OLDEST_BAZEL} to {_NEWEST_BAZEL}: with "
           f"Bazelisk, set USE_BAZEL_VERSION={_NEWEST_BAZEL}.x; else apt-get "
           f"install {' '.join(BAZEL_PACKAGES)}, with /usr/bin before other "
           "folders on PATH")
    number = re.match(r"\d+", version)
    if not number:
        return f"bazel --version fails ({reason}); {way}"
    if not _OLDEST_BAZEL <= int(number[0]) <= _NEWEST_BAZEL:
        old = int(number[0]) < _OLDEST_BAZEL
        return f"bazel {version} is too {'old' if old else 'new'}; {way}"
    return ""


def _version_of_bazel(root: str) -> tuple[str, str]:
    """Its version, "no_version" of Debian's, or "" and a reason."""
    done = _ask(["bazel", "--version"], root)
    found = re.search(r"^bazel (\S+)", done.stdout, re.M)
    if done.returncode or not found:
        return "", _last_line(done)
    # Debian's may add what it was built from.
    return found[1].rstrip("-"), ""


def _fault_of_compiler() -> str:
    """Bazel takes that of CC, too."""
    compiler = os.environ.get("CC") or "g++"
    done = _ask([compiler, "-std=c++20", "-dM", "-E", "-x", "c++", "/dev/null"])
    found = re.search(r"__cplusplus (\d+)", done.stdout)
    if not done.returncode and found and int(found[1]) >= _CPP20:
        return ""
    return (f"{compiler} does not have the whole of C++20: install g++ 11 or "
            "newer and set CC to its gcc where it is not the default (apt-get "
            "install gcc-11 g++-11; export CC=gcc-11)")


def _fault_of_nvcc(toolkit: str) -> str:
    """It includes CUDA's headers, which refuse compilers of C++ that are newer
    than it knows."""
    command = [os.path.join(toolkit, "bin", "nvcc"), "-std=c++20"]
    if os.environ.get("CC"):
        command += ["-ccbin", os.environ["CC"]]
    done = _ask([*command, "-E", "-x", "cu", "/dev/null", "-o", "/dev/null"])
    if not done.returncode:
        return ""
    return (f"{command[0]} cannot compile C++20 with this compiler "
            f"({_last_line(done)}): set CUDA_HOME to CUDA 12 or newer that "
            "knows the compiler, or to a folder without nvcc, and pip gets it")


def _ask(command: list[str], folder: str = "/") -> subprocess.CompletedProcess:
    try:
        return subprocess.run(
            command, cwd=folder, env=environment(), text=True,
            check=False, errors="replace", stdin=subprocess.DEVNULL,
            capture_output=True)
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _last_line(done: subprocess.CompletedProcess) -> str:
    """The reason in one line: an error's, where one is marked."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if re.search("error|fatal", line)]
    return (errors or lines[::-1] or [f"exit code {done.returncode}"])[0]
