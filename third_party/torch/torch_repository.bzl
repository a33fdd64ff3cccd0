# SPDX-License-Identifier: Apache-2.0
"""One minor of the torch wheel: headers, libraries to link, its interpreter.

Found by asking TORCH_2_N_PYTHON, else TORCH_PYTHON, else the .venv's python.
Without such a wheel every target that needs it is skipped, unless it was named.
"""

_BUILD = """# Written by //third_party/torch: torch {version}.
package(default_visibility = ["//visibility:public"])
compat = {compat}
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
# By full path: NEEDED gets the plain name and no RUNPATH is written; in the
# process torch has loaded them already.
cc_library(
    name = "c10_libs",
    linkopts = ["{lib}/libc10_cuda.so", "{lib}/libc10.so",
                "-Wl,--allow-shlib-undefined", "-Wl,-rpath-link,{cudart}"],
    target_compatible_with = compat,
)
cc_library(
    name = "libs",
    linkopts = ["{lib}/libtorch_cuda.so", "{lib}/libtorch_cpu.so",
                "{lib}/libc10_cuda.so", "{lib}/libc10.so",
                "-Wl,--allow-shlib-undefined", {rpath_link}],
    target_compatible_with = compat,
)
# Executables start without torch in the process: find the libraries on disk.
cc_library(
    name = "libs_rpath",
    linkopts = ["-Wl,-rpath,{lib}"],
    deps = [":libs"],
    target_compatible_with = compat,
)
sh_binary(
    name = "python",
    srcs = ["python.sh"],
    target_compatible_with = compat,
)
"""

# Reads version.py and does not import torch: 0.1 s instead of 3.
_PROBE = """
import glob, importlib.util, os, sys
spec = importlib.util.find_spec("torch") or sys.exit("no torch")
root, scope = os.path.dirname(spec.origin), {}
exec(open(root + "/version.py").read(), scope)
nvidia = sorted(glob.glob(os.path.dirname(root) + "/nvidia/*/lib"))
print(root, scope["__version__"], *nvidia, sep="\\n")
"""

def _probe(rctx, python):
    said = rctx.execute([python, "-c", _PROBE])
    found = said.stdout.strip().split("\n") if not said.return_code else []
    if found and found[1].startswith(rctx.attr.minor + "."):
        return found
    return []

def _impl(rctx):
    minor = rctx.attr.minor
    env = rctx.os.environ
    named = env.get("TORCH_%s_PYTHON" % minor.replace(".", "_"))
    own = str(rctx.path(Label("//:WORKSPACE")).dirname) + "/.venv/bin/python"
    python, found = "", []
    for python in [named] if named else [env.get("TORCH_PYTHON"), own]:
        if python and rctx.path(python).exists:
            found = _probe(rctx, python)
        if found:
            break
    if named and not found:
        fail("%s has no torch %s" % (named, minor))
    root, version, nvidia = "", "", []
    if found:
        root, version, nvidia = found[0], found[1], found[2:]
        rctx.symlink(root + "/include", "include")
    compat = [] if found else ["@stratalloc//third_party:not_available"]

    # A wrapper and not a link: through a link python does not see its venv.
    rctx.file(
        "python.sh",
        "#!/bin/sh\n# torch %s\nexec '%s' \"$@\"\n" % (version, python),
        executable = True,
    )
    cudart = [d for d in nvidia if d.endswith("/cu13/lib")]
    rctx.file("BUILD.bazel", _BUILD.format(
        compat = compat,
        cudart = cudart[0] if cudart else root + "/lib",
        lib = root + "/lib",
        number = minor.split(".")[1],
        rpath_link = ", ".join([
            repr("-Wl,-rpath-link," + d)
            for d in nvidia + [root + "/lib"]
        ]),
        version = version,
    ))
    rctx.file("defs.bzl", """# Written by //third_party/torch.
TORCH_VERSION = %r
TORCH_COMPATIBLE_WITH = %r
""" % (version, compat))

torch_repository = repository_rule(
    implementation = _impl,
    attrs = {"minor": attr.string()},
    # One fixed list per rule, hence minors that may come later.
    environ = ["TORCH_PYTHON"] + ["TORCH_2_%d_PYTHON" % n for n in range(6, 20)],
    configure = True,
    local = True,
)
