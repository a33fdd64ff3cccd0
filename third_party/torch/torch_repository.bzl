# SPDX-License-Identifier: Apache-2.0
"""The torch that this build is for: headers, stubs to link, an interpreter.

Found in TORCH_PYTHON, else in the .venv. TORCH_HEADERS, a folder with a wheel's
`torch/include` and `torch/version.py` (headers.py), replaces an installed torch
where nothing is run: bridges are compiled and linked from headers alone.
Without either every target that needs torch is skipped, unless it was named.
"""

_BUILD = """# Written by //third_party/torch: torch {version}.
package(default_visibility = ["//visibility:public"])
compat = {compat}
runs = {runs}
defines = [
    "TORCH_MINOR={number}",
    # Headers change only with the wheel; this rebuilds when it does.
    "STRATALLOC_TORCH_VERSION={version}",
    "_GLIBCXX_USE_CXX11_ABI=1",
    "NDEBUG",
]
# c10 only: 300 files.
cc_library(
    name = "c10_headers",
    hdrs = glob(["include/c10/**", "include/torch/headeronly/**"],
                allow_empty = True),
    defines = defines,
    includes = ["include"],
    deps = ["@cuda//:headers"],
    target_compatible_with = compat,
)
# Everything, ATen and the C++ frontend included: 9000 files.
cc_library(
    name = "headers",
    hdrs = glob(["include/**/*.h", "include/**/*.hpp", "include/**/*.inl"],
                allow_empty = True,
                exclude = ["include/c10/**", "include/torch/headeronly/**",
                           "include/google/**", "include/tensorpipe/**",
                           "include/fbgemm/**", "include/kineto/**",
                           "include/oneapi/**", "include/dnnl*"]),
    defines = defines,
    includes = ["include", "include/torch/csrc/api/include"],
    deps = [":c10_headers"],
    target_compatible_with = compat,
)
# Random state that kernels of a graph read: the C++ part of two CUDA headers.
cc_library(
    name = "philox_headers",
    hdrs = glob(["include/ATen/cuda/detail/PhiloxCudaStateRaw.cuh"],
                allow_empty = True),
    defines = defines,
    includes = ["include"],
    deps = [":headers"],
    target_compatible_with = compat,
)
# Empty libraries of the right sonames. The object gets these names as NEEDED
# and no RUNPATH; the loader finds what torch has loaded under them.
cc_library(
    name = "libs",
    linkopts = ["-Wl,--no-as-needed", {stubs}],
    target_compatible_with = compat,
)
sh_binary(
    name = "python",
    srcs = ["python.sh"],
    target_compatible_with = runs,
)
"""

_LIBRARIES = ["libtorch_cuda.so", "libtorch_cpu.so", "libc10_cuda.so", "libc10.so"]

# Reads version.py and does not import torch: 0.1 s instead of 3.
_PROBE = """
import importlib.util, os, sys
spec, scope = importlib.util.find_spec("torch") or sys.exit("no torch"), {}
root = os.path.dirname(spec.origin)
exec(open(root + "/version.py").read(), scope)
print(root, scope["__version__"], sep="\\n")
"""

def _probe(rctx, python):
    said = rctx.execute([python, "-c", _PROBE])
    return said.stdout.strip().split("\n") if not said.return_code else []

def _version_in(rctx, headers):
    """The version of a folder of headers: read, as no interpreter need be here."""
    path = headers + "/torch/version.py"
    if not rctx.path(path).exists:
        fail("TORCH_HEADERS=%s has no torch/version.py" % headers)
    for line in rctx.read(path).split("\n"):
        if line.startswith("__version__ = "):
            return line[len("__version__ = "):].strip(" '\"")
    fail("TORCH_HEADERS=%s: torch/version.py has no line __version__" % headers)

def _found(rctx):
    """(interpreter, torch's folder, version); "" for what is not there."""
    env = rctx.os.environ
    headers = env.get("TORCH_HEADERS")
    if headers:
        return "", headers + "/torch", _version_in(rctx, headers)
    own = str(rctx.path(Label("//:WORKSPACE")).dirname) + "/.venv/bin/python"
    python = env.get("TORCH_PYTHON") or own
    found = _probe(rctx, python) if rctx.path(python).exists else []
    if not found:
        if env.get("TORCH_PYTHON"):
            fail("TORCH_PYTHON=%s has no torch" % python)
        return python, "", ""
    return python, found[0], found[1]

def _make_stubs(rctx):
    """The linker's options for them."""
    compiler = rctx.os.environ.get("CC") or "gcc"
    rctx.file("stubs/empty.c", "")
    paths = []
    for name in _LIBRARIES:
        path = str(rctx.path("stubs/" + name))
        made = rctx.execute([
            compiler,
            "-shared",
            "-nostdlib",
            "-Wl,-soname," + name,
            "-o",
            path,
            str(rctx.path("stubs/empty.c")),
        ])
        if made.return_code:
            fail("cannot link an empty %s: %s" % (name, made.stderr))
        paths.append(path)
    return paths

def _impl(rctx):
    python, root, version = _found(rctx)
    missing = ["@stratalloc//third_party:not_available"]
    stubs, parts = [], ["0", "0"]
    if root:
        rctx.symlink(root + "/include", "include")
        stubs = _make_stubs(rctx)
        parts = version.split(".")

    # A wrapper and not a link: through a link python does not see its venv.
    rctx.file(
        "python.sh",
        "#!/bin/sh\n# torch %s\nexec '%s' \"$@\"\n" % (version, python),
        executable = True,
    )
    rctx.file("BUILD.bazel", _BUILD.format(
        compat = [] if root else missing,
        runs = [] if root and python else missing,
        number = parts[1],
        stubs = ", ".join([repr(path) for path in stubs]),
        version = version,
    ))
    rctx.file("defs.bzl", """# Written by //third_party/torch.
TORCH_VERSION = %r

# "2_11", as the names of libraries have it.
TORCH_MINOR = %r
""" % (version, "_".join(parts[:2])))

torch_repository = repository_rule(
    implementation = _impl,
    environ = ["CC", "TORCH_HEADERS", "TORCH_PYTHON"],
    configure = True,
    local = True,
)
