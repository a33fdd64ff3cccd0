# SPDX-License-Identifier: Apache-2.0
"""A library that the system's package manager installed.

Looked for in DEPS_PREFIX (a colon-separated list), /usr and /usr/local. One
that is missing breaks only the targets that need it, with the package's name.
"""

_FOUND = """# Written by //third_party/system.
cc_library(
    name = "{name}",
    {hdrs}
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
)
"""

_MISSING = """# Written by //third_party/system.
genrule(
    name = "say",
    outs = ["missing.h"],
    cmd = "echo 'ERROR: {name} not found: apt-get install {apt}, " +
          "or set DEPS_PREFIX' >&2; exit 1",
)
cc_library(
    name = "{name}",
    hdrs = [":say"],
    visibility = ["//visibility:public"],
)
"""

def _impl(rctx):
    extra = rctx.os.environ.get("DEPS_PREFIX", "").split(":")
    searched_by_compiler = ["/usr", "/usr/local"]
    for prefix in [p for p in extra if p] + searched_by_compiler:
        if not rctx.path(prefix + "/include/" + rctx.attr.hdr).exists:
            continue
        form = "-l:lib%s.a" if rctx.attr.static else "-l%s"
        links = [form % lib for lib in rctx.attr.libs]
        hdrs = ""
        if prefix not in searched_by_compiler:
            rctx.symlink(prefix + "/include", "include")
            hdrs = 'hdrs = glob(["include/**"]), includes = ["include"],'
            links = [
                "-L%s/lib" % prefix,
                "-Wl,-rpath,%s/lib" % prefix,
            ] + links
        rctx.file("BUILD.bazel", _FOUND.format(
            name = rctx.name,
            hdrs = hdrs,
            linkopts = links + ["-pthread"],
        ))
        return
    rctx.file("BUILD.bazel", _MISSING.format(
        name = rctx.name,
        apt = rctx.attr.apt,
    ))

system_library = repository_rule(
    implementation = _impl,
    attrs = {
        "apt": attr.string(),
        "hdr": attr.string(),
        "libs": attr.string_list(),
        "static": attr.bool(),
    },
    environ = ["DEPS_PREFIX"],
    configure = True,
    local = True,
)
