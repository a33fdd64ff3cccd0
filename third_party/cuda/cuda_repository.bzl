# SPDX-License-Identifier: Apache-2.0
"""The CUDA toolkit: headers for C++, nvcc and CUB for kernels.

Looked for in CUDA_HOME, /usr/local/cuda and the .venv's nvidia/cu13 (where
PyPI's cuda-toolkit[nvcc,cccl,cudart] puts it). Only a toolkit with nvcc counts.
CUDA_HEADERS names one more folder of headers: what a toolkit of PyPI's packages
lacks of CUDA's libraries, torch's packages have.
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

def _candidates(rctx):
    named = rctx.os.environ.get("CUDA_HOME")
    if named:
        return [named]
    workspace = str(rctx.path(Label("//:WORKSPACE")).dirname)
    libs = rctx.path(workspace + "/.venv/lib")
    pythons = libs.readdir() if libs.exists else []
    return ["/usr/local/cuda"] + [
        str(python) + "/site-packages/nvidia/cu13"
        for python in pythons
    ]

def _impl(rctx):
    compat, root, version = ["@stratalloc//third_party:not_available"], "", ""
    for candidate in _candidates(rctx):
        nvcc = candidate + "/bin/nvcc"
        if not rctx.path(nvcc).exists:
            continue
        said = rctx.execute([nvcc, "--version"])
        if said.return_code or ", V" not in said.stdout:
            continue
        compat, root = [], candidate
        version = said.stdout.split(", V")[1].split("\n")[0]
        rctx.symlink(root + "/include", "include")
        more = rctx.os.environ.get("CUDA_HEADERS")
        if more:
            rctx.symlink(more, "more")
        break
    rctx.file("BUILD.bazel", _BUILD.format(compat = compat))
    rctx.file("defs.bzl", """# Written by //third_party/cuda.
CUDA_ROOT = %r
CUDA_VERSION = %r
CUDA_COMPATIBLE_WITH = %r
""" % (root, version, compat))

cuda_repository = repository_rule(
    implementation = _impl,
    environ = ["CUDA_HEADERS", "CUDA_HOME"],
    configure = True,
    local = True,
)
