# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels as data: nvcc makes a fatbin, .incbin embeds it.

No symbol of the CUDA runtime is linked; kernels are loaded and launched
through CudaApi, hence also on the simulated device.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load(
    "@cuda//:defs.bzl",
    "CUDA_ARCHITECTURES",
    "CUDA_COMPATIBLE_WITH",
    "CUDA_ROOT",
    "CUDA_VERSION",
)
load("//bazel:cc.bzl", "cc_library")

# Real code for these, and PTX of the first one: the driver of any other GPU
# from the oldest of them on compiles that. nvcc knows 100 and 120 from 12.8 on.
_WANTED = ["75", "80", "86", "89", "90", "100", "120"]
CUDA_ARCHS = [arch for arch in _WANTED if arch in CUDA_ARCHITECTURES]

def _fatbin_impl(ctx):
    if not CUDA_ARCHS:
        fail("nvcc of %s compiles for none of %s" % (CUDA_ROOT, _WANTED))
    toolchain = find_cpp_toolchain(ctx)
    deps = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context
    out = ctx.actions.declare_file(ctx.label.name + ".fatbin")
    args = ctx.actions.args()
    args.add_all(["-std=c++20", "-O2", "-DNDEBUG", "--fatbin"])
    args.add_all(["-ccbin", toolchain.compiler_executable, "-o", out])

    # Else a temporary file's name is in the object: not reproducible.
    args.add("--objdir-as-tempdir")

    # Else names of CUB's objects are made of the source's whole path, which
    # each sandbox and each clone has anew. cicc takes the last it is given.
    args.add_all(["-Xcicc", "--orig_src_path_name", "-Xcicc", ctx.file.src])
    args.add_all([
        "-gencode=arch=compute_{0},code=sm_{0}".format(arch)
        for arch in CUDA_ARCHS
    ])
    args.add("-gencode=arch=compute_{0},code=compute_{0}".format(CUDA_ARCHS[0]))
    args.add_all(deps.defines, format_each = "-D%s")
    args.add_all(
        depset(["."], transitive = [deps.quote_includes, deps.includes]),
        before_each = "-I",
    )
    args.add_all(deps.system_includes, before_each = "-isystem")
    args.add_all(ctx.attr.copts)
    args.add(ctx.file.src)
    ctx.actions.run(
        executable = CUDA_ROOT + "/bin/nvcc",
        arguments = [args],
        inputs = depset(
            [ctx.file.src] + ctx.files.hdrs,
            transitive = [deps.headers, toolchain.all_files],
        ),
        outputs = [out],
        mnemonic = "Nvcc",
        # The version is in the action's key: a new toolkit rebuilds.
        env = {"CUDA_VERSION": CUDA_VERSION, "PATH": "/usr/bin:/bin"},
    )
    return [DefaultInfo(files = depset([out]))]

_fatbin = rule(
    implementation = _fatbin_impl,
    attrs = {
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = True),
        "src": attr.label(allow_single_file = [".cu"]),
        "_cc_toolchain": attr.label(
            default = "@bazel_tools//tools/cpp:current_cc_toolchain",
        ),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

# The sum makes the source another one when the kernel is: what .incbin reads is
# in no .d file, and Bazel drops inputs that are in none from the compile
# action's key, so that an object with the old kernel would stay.
_SOURCE = """
printf '.section .rodata\\n.global {n}, {n}_end\\n.hidden {n}, {n}_end\\n\
.balign 16\\n{n}: .incbin "%s"\\n{n}_end:\\n\
.section .note.GNU-stack,"",@progbits\\n' \
$(execpath {n}_fatbin) > $(execpath {n}.S)
echo "/* $$(cksum < $(execpath {n}_fatbin)) */" >> $(execpath {n}.S)
for s in {n} {n}_end; do
  echo "extern \\"C\\" __attribute__((visibility(\\"hidden\\")))" \
       "const unsigned char $$s[];"
done > $(execpath {n}.h)
"""

def cuda_fatbin(name, src, hdrs = [], deps = [], copts = [], **kwargs):
    """A cc_library whose header `name`.h declares the embedded fatbin.

    The header, included as "<package>/<name>.h", declares
    `const unsigned char name[]` and `name_end[]`.

    Args:
      name: also the name of the symbols.
      src: the .cu file.
      hdrs: headers the .cu file includes.
      deps: cc_library targets whose headers it includes.
      copts: more options for nvcc.
      **kwargs: passed on to the cc_library.
    """
    compat = CUDA_COMPATIBLE_WITH
    _fatbin(
        name = name + "_fatbin",
        src = src,
        copts = copts,
        hdrs = hdrs,
        target_compatible_with = compat,
        deps = deps,
    )
    native.genrule(
        name = name + "_source",
        srcs = [name + "_fatbin"],
        outs = [name + ".S", name + ".h"],
        cmd = _SOURCE.format(n = name),
        target_compatible_with = compat,
    )
    cc_library(
        name = name,
        srcs = [name + ".S"],
        hdrs = [name + ".h"],
        target_compatible_with = compat,
        # An input of the compile action, for .incbin.
        textual_hdrs = [name + "_fatbin"],
        **kwargs
    )
