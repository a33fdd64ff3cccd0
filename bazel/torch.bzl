# SPDX-License-Identifier: Apache-2.0
"""Tests in Python, run by the interpreter that has torch."""

_PYTHON = "@torch//:python"

def torch_py_test(
        name,
        srcs,
        package = True,
        data = [],
        args = [],
        env = {},
        tags = [],
        size = "large",
        sanitizers = False,
        fresh = None,
        long = False,
        shards = 1,
        libraries = "",
        imports = [],
        **kwargs):
    """pytest files, each in its own process.

    Runs from the workspace root with the built packages (not those installed),
    the allocator's and the simulated device's, first on the path, so that
    `import stratalloc` and `python -m stratalloc` in a child process mean what
    was just built. Skipped where no torch is installed (third_party/torch).

    Files that want the same environment share a target, which imports torch
    once and forks for each of them.

    Args:
      name: of the test.
      srcs: the pytest files.
      package: False for tests that do without the built packages.
      data: files, e.g. conftest.py and helpers, found below the workspace root.
      args: more arguments for pytest.
      env: environment of the test.
      tags: Bazel's tags.
      size: Bazel's size; large has a timeout of 15 minutes.
      sanitizers: True also runs it under --config=asan and ubsan.
      fresh: True starts an interpreter per file: they look at an import, or
        load a device themselves. None: where there is one file, which would
        share an import with no other.
      long: True adds `name`_long, for the cases with pytest's mark `long`,
        which this target leaves out: `./dev test --long`.
      shards: processes that share the files.
      libraries: module that imports torch on top of other libraries than the
        package's simulated ones.
      imports: modules that the files import, which take long: imported once,
        after torch. The first optimizer of a process imports torch._dynamo.
      **kwargs: passed on to sh_test.
    """
    skip = ["notsan"] if sanitizers else ["notsan", "nosanitizer"]
    site = ["//tests/simulator/cudasim/package:site"] if package else []
    values = dict(env)
    alone = len(srcs) == 1 if fresh == None else fresh
    if package:
        values["STRATALLOC_SITE"] = "$(rootpath //tests/simulator/cudasim/package:site)"
    kinds = [("", "", tags, size, shards)]
    if long:
        kinds.append(
            (
                "_long",
                "--long",
                tags + ["long", "manual"] +
                (["sanitizers"] if sanitizers else []),
                "enormous",
                1,
            ),
        )
    for kind, flag, kind_tags, kind_size, kind_shards in kinds:
        native.sh_test(
            name = name + kind,
            size = kind_size,
            srcs = ["//third_party/torch:run_python.sh"],
            args = [
                "$(rootpath %s)" % _PYTHON,
                "$(rootpath //bazel:pytest_files.py)",
            ] + (["--fresh"] if alone else []) + ([flag] if flag else []) +
            (["--libraries=" + libraries] if libraries else []) +
            ["--import=" + module for module in imports] + [
                "$(rootpath %s)" % src
                for src in srcs
            ] + ["--"] + args,
            data = srcs + [
                _PYTHON,
                "//bazel:programs.py",
                "//bazel:pytest_files.py",
                "//third_party:requirements",
            ] + data + site,
            env = values,
            shard_count = kind_shards,
            tags = kind_tags + skip + ["python"],
            **kwargs
        )
