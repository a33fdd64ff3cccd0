# SPDX-License-Identifier: Apache-2.0
"""C++ rules with the project's defaults; every BUILD file loads these.

Hidden visibility everywhere: what a shared object exports is marked in the
source (or named by a version script). Everything links statically, so that
hidden symbols of a library are found by its tests.
"""

load(
    "@rules_cc//cc:defs.bzl",
    _cc_binary = "cc_binary",
    _cc_library = "cc_library",
    _cc_test = "cc_test",
)

_COPTS = ["-fvisibility=hidden", "-fvisibility-inlines-hidden"]

# GCC's defaults otherwise: gnu-unique on, no -Bsymbolic. Not --exclude-libs,ALL:
# our own libraries are archives too, and their exports would be gone.
_SHARED_LINKOPTS = [
    "-Wl,-z,relro,-z,now",
    # Debian's libzstd.a is compiled for executables (-fPIE): it can go into a
    # shared object because none of its symbols is one of that object.
    "-Wl,--exclude-libs,liblz4.a:liburing.a:libxxhash.a:libz.a:libzstd.a",
]

def cc_library(
        name,
        srcs = [],
        textual_hdrs = [],
        units = 0,
        alone = [],
        copts = [],
        linkstatic = True,
        **kwargs):
    """A library that is only ever linked statically.

    Args:
      name: of the library.
      srcs: its files.
      textual_hdrs: files that others include and that do not compile alone.
      units: 0 compiles each file alone. N compiles N files, each of which
        includes every N-th of `srcs`: headers that take longer than the code
        below them, torch's above all, are parsed N times in all. Files of a
        unit share their unnamed namespaces. `--define=units=off` (`./dev lint`)
        compiles each file alone, which finds an include that is missing.
      alone: files of `srcs` that no unit includes.
      copts: more options of the compiler.
      linkstatic: whether programs link it statically.
      **kwargs: passed on.
    """
    compiled = srcs
    if units:
        # The compiler takes an included file for a header, where a type of an
        # unnamed namespace would be another one in each file.
        copts = copts + select({
            "//bazel:no_units": [],
            "//conditions:default": ["-Wno-subobject-linkage"],
        })
        textual_hdrs = textual_hdrs + [
            src
            for src in srcs
            if src.endswith(".cc") and src not in alone
        ]
        compiled = select({
            "//bazel:no_units": srcs,
            "//conditions:default": _units(name, srcs, units, alone),
        })
    _cc_library(
        name = name,
        srcs = compiled,
        copts = _COPTS + copts,
        linkstatic = linkstatic,
        textual_hdrs = textual_hdrs,
        **kwargs
    )

def _units(name, srcs, count, alone):
    """The files that include `srcs`, made; and what of `srcs` stands alone."""
    files = [src for src in srcs if src.endswith(".cc") and src not in alone]
    made = []
    for number in range(count):
        lines = [
            "#include \"%s/%s\"" % (native.package_name(), file)
            for file in files[number::count]
        ]
        made.append("%s_unit_%d.cc" % (name, number))
        native.genrule(
            name = made[-1] + "_made",
            outs = [made[-1]],
            cmd = "printf '%s\\n' " +
                  " ".join(["'%s'" % line for line in lines]) + " >$@",
        )
    return made + [src for src in srcs if src not in files]

def cc_binary(name, copts = [], **kwargs):
    """An executable, or with linkshared a shared object as it is."""
    _cc_binary(name = name, copts = _COPTS + copts, **kwargs)

def cc_shared_object(
        name,
        deps = [],
        version_script = None,
        linkopts = [],
        additional_linker_inputs = [],
        **kwargs):
    """A shared object called exactly `name`, e.g. "libstratalloc.so".

    It asks for no newer glibc and libstdc++ than //bazel/floor says, as far as
    the compiler allows.

    Args:
      name: the file's name.
      deps: libraries; those whose symbols only outsiders use say alwayslink.
      version_script: a file that names the exports. Not for a bridge: a
        `local: *` would also hide the GNU-unique symbols it shares with torch.
      linkopts: more linker options.
      additional_linker_inputs: files that linkopts name.
      **kwargs: passed on.
    """
    options = ["-Wl,-soname," + name] + _SHARED_LINKOPTS
    inputs = list(additional_linker_inputs)
    if version_script:
        options = options + [
            "-Wl,--version-script=$(location %s)" % version_script,
        ]
        inputs.append(version_script)
    cc_binary(
        name = name,
        additional_linker_inputs = inputs,
        linkopts = options + linkopts,
        linkshared = True,
        linkstatic = True,
        deps = deps + ["//bazel/floor"],
        **kwargs
    )

def cc_test(name, deps = [], main = True, **kwargs):
    """A GoogleTest, with gmock and a main() unless main = False.

    Its own sources are not optimised: they take a quarter less to compile.

    Args:
      name: of the test.
      deps: libraries.
      main: False for a test with a main() of its own.
      **kwargs: passed on.
    """
    _cc_test(
        name = name,
        copts = _COPTS + ["-O0", "-U_FORTIFY_SOURCE"] +
                kwargs.pop("copts", []),
        linkstatic = True,
        deps = deps + (["@googletest"] if main else []),
        **kwargs
    )

def cc_device_test(name, deps, linkopts = [], **kwargs):
    """A GoogleTest with a simulated device of its own linked in.

    The product finds CUDA with dlsym in the executable, hence -rdynamic.

    Args:
      name: of the test.
      deps: libraries; the device is added.
      linkopts: more linker options.
      **kwargs: passed on to cc_test.
    """
    cc_test(
        name = name,
        linkopts = ["-rdynamic"] + linkopts,
        deps = deps + ["//tests/simulator/cudasim:cudasim_static"],
        **kwargs
    )

def cc_folder(name, exclude = [], **kwargs):
    """The library of a folder: all of its C++ files but tests and benchmarks.

    Args:
      name: of the library; the folder's.
      exclude: files that another target of the folder has.
      **kwargs: passed on to cc_library.
    """
    cc_library(
        name = name,
        srcs = native.glob(
            ["*.cc"],
            exclude = ["*_test.cc", "*_benchmark.cc"] + exclude,
        ),
        hdrs = native.glob(["*.h"], exclude = ["*_test.h"] + exclude),
        **kwargs
    )

def cc_folder_tests(
        deps,
        device = False,
        env = {},
        exclude = [],
        size = "small",
        **kwargs):
    """The tests of a folder, each file in a process of its own.

    Args:
      deps: libraries of all of them.
      device: True links the simulated device in.
      env: environment by the test's name.
      exclude: files that another target of the folder has.
      size: Bazel's, of each of them.
      **kwargs: passed on to cc_test.
    """
    rule = cc_device_test if device else cc_test
    for src in native.glob(["*_test.cc"], exclude = exclude):
        name = src[:-len(".cc")]
        rule(
            name = name,
            size = size,
            srcs = [src],
            deps = deps,
            env = env.get(name, {}),
            **kwargs
        )
