# SPDX-License-Identifier: Apache-2.0
"""CPython's headers, for extensions of the limited API.

From STRATALLOC_PYTHON, the .venv's interpreter or /usr/bin/python3, whichever
comes first and has Python.h. The limited API makes the minor irrelevant.
"""

_BUILD = """# Written by //third_party/python.
cc_library(
    name = "headers",
    hdrs = glob(["include/**/*.h"], allow_empty = True),
    includes = ["include"],
    target_compatible_with = {compat},
    visibility = ["//visibility:public"],
)
"""

def _impl(rctx):
    workspace = str(rctx.path(Label("//:WORKSPACE")).dirname)
    compat = ["@stratalloc//third_party:not_available"]
    for python in [
        rctx.os.environ.get("STRATALLOC_PYTHON", ""),
        workspace + "/.venv/bin/python",
        "/usr/bin/python3",
    ]:
        if not python or not rctx.path(python).exists:
            continue
        said = rctx.execute([
            python,
            "-c",
            "import sysconfig; print(sysconfig.get_path('include'))",
        ])
        include = said.stdout.strip()
        if said.return_code or not rctx.path(include + "/Python.h").exists:
            continue
        rctx.symlink(include, "include")
        compat = []
        break
    rctx.file("BUILD.bazel", _BUILD.format(compat = compat))

python_repository = repository_rule(
    implementation = _impl,
    environ = ["STRATALLOC_PYTHON"],
    configure = True,
    local = True,
)
