# SPDX-License-Identifier: Apache-2.0
"""Needs of a build outside `./dev`: a torch, Debian's packages and a CUDA toolkit.

pip sets PYTHONPATH so that the interpreter that it installs into, which runs the
backend, sees other packages. Standard library only.
"""

import ast
import dataclasses
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import build_tools

# Headers of CUDA's libraries that torch's include, and the packages of PyPI that
# have them: torch's own requirements.
_HEADERS_OF_CUDA = {
    "cublas_v2.h": "nvidia-cublas",
    "cusolverDn.h": "nvidia-cusolver",
    "cusparse.h": "nvidia-cusparse",
}
_PREFIXES = ("/usr", "/usr/local")
# Prints the folder above torch, its version and that of its CUDA, an empty line
# without; does not import it.
_PROBE = """
import importlib.util, os
spec = importlib.util.find_spec("torch")
if spec and spec.origin:
    root, scope = os.path.dirname(spec.origin), {}
    with open(os.path.join(root, "version.py")) as file:
        exec(file.read(), scope)
    print(os.path.dirname(root), scope["__version__"], scope.get("cuda") or "",
          sep="\\n")
"""


@dataclasses.dataclass(frozen=True)
class Torch:
    """An installed torch: the folder that has it, its version, and that of
    the CUDA that it is built for, "" without."""

    folder: str
    version: str
    cuda: str

    @property
    def cuda_headers(self) -> str:
        """The headers of the packages that torch requires, "" without."""
        folder = os.path.join(self.folder, "nvidia", "cu13", "include")
        return folder if os.path.isdir(folder) else ""


def releases(root: str):
    """The module of the package that says which torch is a release."""
    spec = importlib.util.spec_from_file_location("releases", os.path.join(
        root, "python_shim", "stratalloc", "_native", "releases.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wrong_interpreter() -> str:
    """What keeps the wheel's tag, cp310-abi3-linux_x86_64, out of the
    interpreter that pip installs into; "" for nothing."""
    if sys.implementation.name != "cpython":
        return sys.implementation.name
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "a free-threaded Python"
    here = f"{sys.platform} {platform.machine()}"
    return "" if here == "linux x86_64" else here


def environment_of_bazel(root: str) -> dict[str, str]:
    """With a home: some containers have none, and Bazel wants one."""
    variables = build_tools.environment()
    home = variables.get("HOME")
    if not home or not os.access(home, os.W_OK):
        variables["HOME"] = os.path.join(root, "build", "home")
        os.makedirs(variables["HOME"], exist_ok=True)
    return variables


def check_writable(root: str) -> None:
    """OSError, where the build cannot write its reports into the clone."""
    folder = os.path.join(root, "build")
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def torch_of(python: str) -> Torch | None:
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], env=build_tools.environment(), text=True, check=False,
            cwd="/", stdin=subprocess.DEVNULL, capture_output=True)
    except OSError:
        return None
    lines = done.stdout.splitlines()
    return Torch(*lines) if len(lines) == 3 else None


def listed(root: str, path: str) -> list[str]:
    """The lines of a list of this repository, without comments."""
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return [line.strip() for line in file
                if line.strip() and not line.startswith("#")]


def cuda_toolkit(root: str) -> str:
    """The folder of a toolkit with nvcc, "" where there is none: CUDA_HOME or
    else the system's, then PyPI's of the clone (install.sh) or where this
    interpreter looks."""
    sites = [os.path.join(root, ".venv/cuda"), *sys.path]
    for folder in [os.environ.get("CUDA_HOME") or "/usr/local/cuda"] + [
            os.path.join(site, "nvidia", "cu13") for site in sites]:
        if os.access(os.path.join(folder, "bin", "nvcc"), os.X_OK):
            return folder
    return ""


def missing_cuda(*folders: str) -> dict[str, str]:
    """The headers of CUDA that none of the folders has, and PyPI's packages."""
    return {header: package for header, package in _HEADERS_OF_CUDA.items()
            if not any(os.path.exists(os.path.join(folder, header))
                       for folder in folders if folder)}


def missing_packages(root: str) -> list[str]:
    """Debian's names of what the wheel is compiled with and is not here."""
    missing: list[str] = []
    if shutil.which("bazel"):
        missing += build_tools.missing_rules(root)
    else:
        missing += build_tools.BAZEL_PACKAGES
    if not shutil.which(os.environ.get("CC") or "g++"):
        missing.append("g++")
    prefixes = [*filter(None, os.environ.get("DEPS_PREFIX", "").split(":")),
                *_PREFIXES]
    for header, package in _libraries(root):
        if not any(os.path.exists(os.path.join(prefix, "include", header))
                   for prefix in prefixes):
            missing.append(package)
    if not any(os.path.exists(os.path.join(folder, "Python.h"))
               for folder in (sysconfig.get_path("include"), _system_include())
               if folder):
        missing.append("python3-dev")
    return missing


def _system_include() -> str:
    try:
        return subprocess.run(
            ["/usr/bin/python3", "-c", "import sysconfig\n"
             "print(sysconfig.get_path('include'))"], env=build_tools.environment(),
            text=True, check=True, stdin=subprocess.DEVNULL,
            capture_output=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _libraries(root: str) -> list[tuple[str, str]]:
    """(header, package) of each library of repositories.bzl that a wheel has.
    Those that are linked dynamically are of tests alone."""
    path = os.path.join(root, "third_party", "repositories.bzl")
    with open(path, encoding="utf-8") as file:
        text = re.search(r"_SYSTEM_LIBRARIES = (\{.*?\n\})", file.read(), re.S)
    rows = ast.literal_eval(text[1]).values()
    return [(header, package) for header, names, static, package in rows
            if static or not names]
