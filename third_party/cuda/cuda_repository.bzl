# SPDX-License-Identifier: Apache-2.0
"""The CUDA toolkit: headers for C++, nvcc and CUB for kernels.

Looked for in CUDA_HOME or /usr/local/cuda, then .venv/cuda, where install.sh puts
PyPI's cuda-toolkit[nvcc,cccl,cudart,profiler]. Only a toolkit with nvcc counts.
Headers of CUDA's libraries, which PyPI's toolkit lacks, come from one more
folder: CUDA_HEADERS, or what torch's packages in .venv brought.
Nothing here links a CUDA library: libcudart and libcuda are resolved at run
time from what the process has loaded.
"""

_BUILD = """# Written by //third_party/cuda.
package(default_visibility = ["//visibility:public"])
# Without CCCL's 1700 files, which only nvcc needs and finds by itself.
cc_library(
    name = "headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/**",
                 "include/nv/**", "more/*.h"], allow_empty = True),
    includes = ["include", "more"],
    target_compatible_with = {compat},
)
"""

def _venv(rctx):
    return str(rctx.path(Label("//:WORKSPACE")).dirname) + "/.venv"

def _candidates(rctx):
    return [
        rctx.os.environ.get("CUDA_HOME") or "/usr/local/cuda",
        _venv(rctx) + "/cuda/nvidia/cu13",
    ]

def _more_headers(rctx, root):
    """A folder with the headers of CUDA's libraries, None where root has them."""
    named = rctx.os.environ.get("CUDA_HEADERS")
    if named or rctx.path(root + "/include/cublas_v2.h").exists:
        return named
    libs = rctx.path(_venv(rctx) + "/lib")
    for python in libs.readdir() if libs.exists else []:
        folder = rctx.path(str(python) + "/site-packages/nvidia/cu13/include")
        if folder.exists:
            return folder
    return None

def _architectures(rctx, nvcc):
    """Those that this nvcc compiles for, as "75"; of compute_75."""
    said = rctx.execute([nvcc, "--list-gpu-arch"])
    if said.return_code:
        return []
    return [
        line[len("compute_"):].strip()
        for line in said.stdout.split("\n")
        if line.startswith("compute_")
    ]

def _impl(rctx):
    compat, root, version = ["@stratalloc//third_party:not_available"], "", ""
    architectures = []
    for candidate in _candidates(rctx):
        nvcc = candidate + "/bin/nvcc"
        if not rctx.path(nvcc).exists:
            continue
        said = rctx.execute([nvcc, "--version"])
        if said.return_code or ", V" not in said.stdout:
            continue
        architectures = _architectures(rctx, nvcc)
        if not architectures:
            continue
        compat, root = [], candidate
        version = said.stdout.split(", V")[1].split("\n")[0]
        rctx.symlink(root + "/include", "include")
        more = _more_headers(rctx, root)
        if more:
            rctx.symlink(more, "more")
        break
    rctx.file("BUILD.bazel", _BUILD.format(compat = compat))
    rctx.file("defs.bzl", """# Written by //third_party/cuda.
CUDA_ARCHITECTURES = %r
CUDA_ROOT = %r
CUDA_VERSION = %r
CUDA_COMPATIBLE_WITH = %r
""" % (architectures, root, version, compat))

cuda_repository = repository_rule(
    implementation = _impl,
    environ = ["CUDA_HEADERS", "CUDA_HOME"],
    configure = True,
    local = True,
)
