# SPDX-License-Identifier: Apache-2.0
"""Bridges that `./dev wheel` has built before, one per minor of torch.

STRATALLOC_BRIDGES names their folder. Without it there are none, and wheels
have the bridge of the torch that this build is for.
"""

_BUILD = """# Written by //third_party/torch.
package(default_visibility = ["//visibility:public"])
filegroup(
    name = "stratalloc",
    srcs = glob(["libstratalloc_torch_*.so"], allow_empty = True),
)
filegroup(
    name = "bench",
    srcs = glob(["libstratalloc_bench_torch_*.so"], allow_empty = True),
)
filegroup(
    name = "cudasim",
    srcs = glob(["libcudasim_torch_*.so"], allow_empty = True),
)
"""

def _impl(rctx):
    folder = rctx.os.environ.get("STRATALLOC_BRIDGES", "")
    for file in rctx.path(folder).readdir() if folder else []:
        rctx.symlink(file, file.basename)
    rctx.file("BUILD.bazel", _BUILD)
    rctx.file("defs.bzl", "PREBUILT = %r\n" % bool(folder))

bridges_repository = repository_rule(
    implementation = _impl,
    environ = ["STRATALLOC_BRIDGES"],
    configure = True,
    local = True,
)
