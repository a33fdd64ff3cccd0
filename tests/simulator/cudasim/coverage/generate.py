# SPDX-License-Identifier: Apache-2.0
"""Notes which CUDA symbols the wheels of PyTorch want: needed_symbols.json.

    generate.py 2.11=.venv/lib/python3.11/site-packages [2.12=...]

Reads the installed wheels, not the index. What the file says about minors that
are not given stays. Two kinds of wishes:

  runtime  undefined dynamic symbols with version libcudart.so.13: without one
           of them the library does not load
  driver   names of cuda.h that a library has undefined, keeps as a string for
           dlsym or cuGetProcAddress, or that sources in the wheels (PyTorch's
           headers, Triton's launcher) look up lazily

Needs nm and readelf.
"""

import argparse
import glob
import json
import os
import re
import subprocess

DATA = os.path.join(os.path.dirname(__file__), "needed_symbols.json")

_VERSION = "libcudart.so.13"
_STRING = re.compile(rb"\0(cu[A-Z][A-Za-z0-9_]{2,70})(?=\0)")
_DECLARED = re.compile(r"\b(cu[A-Z]\w+)\s*\(")
_RENAMED = re.compile(r"#\s*define\s+(cu[A-Z]\w+)\s+(?:__CUDA_API_PT\w+\()?(\w+)")
# The libraries a process can get: PyTorch's and what it links or opens.
# Profilers and the CUDA runtime itself do not belong to them.
_LIBRARIES = ("torch/*.so", "torch/lib/*.so", "nvidia/*/lib/*.so*")
_LEFT_OUT = re.compile(
    r"libcudart|libnvperf|libcupti|libpcsampling|libcheckpoint|libnvtx"
    r"|libcufile|\.alt\.so|libshm_windows"
)
# Where PyTorch lists the driver functions it looks up by name.
_LIST = "torch/include/c10/cuda/driver_api.h"
# Triton is a requirement of PyTorch; it compiles this source where it runs and
# looks the names up with dlsym.
_TRITON = "triton/backends/nvidia/driver.*"
_LISTED = re.compile(r"\b_\(\s*(cu[A-Z]\w+)")


def driver_names(site):
    """Every function of the driver that the wheel's own cuda.h knows."""
    names = set()
    for header in ("cuda.h", "cudaProfiler.h", "cudaGL.h", "cudaEGL.h"):
        for path in glob.glob(f"{site}/nvidia/*/include/{header}"):
            with open(path, encoding="utf-8", errors="replace") as stream:
                text = stream.read()
            names.update(_DECLARED.findall(text))
            for pair in _RENAMED.findall(text):
                names.update(n for n in pair if re.match("cu[A-Z]", n))
    return names


def _short(path):
    """"libcublasLt.so.13" -> "libcublasLt": versions differ by minor."""
    return os.path.basename(path).split(".so")[0].split(".cpython")[0]


def undefined(path):
    """(name, version or "") of each undefined dynamic symbol."""
    said = subprocess.run(
        ["nm", "-D", "-u", "--with-symbol-versions", path],
        capture_output=True,
        text=True,
        check=True,
    )
    for line in said.stdout.splitlines():
        name, _, version = line.split()[-1].partition("@")
        yield name, version.lstrip("@")


def strings(path):
    """Strings of the read-only data that could be names of the driver."""
    said = subprocess.run(
        ["readelf", "-SW", path], capture_output=True, text=True, check=True
    )
    found = set()
    for line in said.stdout.splitlines():
        fields = line.partition("]")[2].split()
        if not fields or not fields[0].startswith((".rodata", ".lrodata")):
            continue
        with open(path, "rb") as stream:
            stream.seek(int(fields[3], 16))
            data = b"\0" + stream.read(int(fields[4], 16))
        found.update(name.decode() for name in _STRING.findall(data))
    return found


def wishes(site):
    """{"runtime": {name: {library}}, "driver": ...} of one installed wheel."""
    known = driver_names(site)
    if not known:
        raise SystemExit(f"{site}: no nvidia/*/include/cuda.h")
    found = {"runtime": {}, "driver": {}}

    def add(kind, name, library):
        found[kind].setdefault(name, set()).add(library)

    paths = {p for each in _LIBRARIES for p in glob.glob(f"{site}/{each}")}
    for path in sorted(paths):
        if os.path.islink(path) or _LEFT_OUT.search(path):
            continue
        for name, version in undefined(path):
            if version == _VERSION:
                add("runtime", name, _short(path))
            elif name in known:
                add("driver", name, _short(path))
        for name in strings(path) & known:
            add("driver", name, _short(path))
    for path in glob.glob(f"{site}/{_TRITON}"):
        with open(path, encoding="utf-8") as stream:
            for name in set(re.findall(r"\bcu[A-Z]\w+", stream.read())) & known:
                add("driver", name, "triton")
    with open(f"{site}/{_LIST}", encoding="utf-8") as stream:
        for name in _LISTED.findall(stream.read()):
            add("driver", name, "libc10_cuda")
    return found


def _version(site):
    scope = {}
    with open(f"{site}/torch/version.py", encoding="utf-8") as stream:
        exec(stream.read(), scope)  # pylint: disable=exec-used
    return scope["__version__"]


# NVIDIA's libraries each have a CUDA runtime linked in, and it looks the same
# names up: said once.
LINKED_IN = "linked-in runtimes"


def _libraries(names):
    """As few words as tell who wants a symbol."""
    theirs = ("libtorch", "libc10", "libcaffe2", "triton")
    own = {n for n in names if n.startswith(theirs)}
    others = set(names) - own
    if len(others) > 4:
        others = {LINKED_IN}
    return own | others


def merge(data, minor, version, found):
    """Replaces what `data` says about `minor`."""
    data.setdefault("wheels", {})[minor] = version
    for kind in ("runtime", "driver"):
        table = data.setdefault(kind, {})
        for name in list(table):
            entry = table[name]
            entry["minors"] = [m for m in entry["minors"] if m != minor]
            if not entry["minors"] and name not in found[kind]:
                del table[name]
        for name, libraries in found[kind].items():
            entry = table.setdefault(name, {"minors": [], "by": []})
            entry["minors"] = sorted({*entry["minors"], minor})
            entry["by"] = sorted({*entry["by"], *_libraries(libraries)})


def dump(data):
    """One line per symbol, so that a difference reads like one."""
    lines = ["{", ' "wheels": ' + json.dumps(data["wheels"], sort_keys=True)]
    for kind in ("runtime", "driver"):
        lines[-1] += ","
        lines.append(f' "{kind}": {{')
        rows = sorted(data[kind].items())
        lines += [
            f"  {json.dumps(name)}: {json.dumps(entry, sort_keys=True)},"
            for name, entry in rows
        ]
        lines[-1] = lines[-1].rstrip(",")
        lines.append(" }")
    return "\n".join(lines + ["}", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("wheels", nargs="+", metavar="2.N=SITE_PACKAGES")
    arguments = parser.parse_args()
    data = {}
    if os.path.exists(DATA):
        with open(DATA, encoding="utf-8") as stream:
            data = json.load(stream)
    for wheel in arguments.wheels:
        minor, _, site = wheel.partition("=")
        version = _version(site)
        if not version.startswith(minor + "."):
            raise SystemExit(f"{site} has torch {version}, not {minor}")
        found = wishes(site)
        merge(data, minor, version, found)
        print(
            f"{version}: {len(found['runtime'])} of the runtime, "
            f"{len(found['driver'])} of the driver"
        )
    with open(DATA, "w", encoding="utf-8") as stream:
        stream.write(dump(data))


if __name__ == "__main__":
    main()
