# SPDX-License-Identifier: Apache-2.0
"""Tests in Python, run by the interpreter that has torch."""

load("@stratalloc//third_party:repositories.bzl", "TORCH_MINORS")

def _python(minor):
    return "@torch_%s//:python" % minor.replace(".", "_")

def torch_py_test(
        name,
        main,
        package = True,
        data = [],
        args = [],
        env = {},
        tags = [],
        size = "large",
        sanitizers = False,
        **kwargs):
    """A pytest file in its own process, once per torch minor of the workspace.

    Runs from the workspace root with the built packages (not those installed),
    the allocator's and the simulated device's, first on the path, so that `import stratalloc` and
    `python -m stratalloc` in a child process mean what was just built. A minor
    whose wheel is absent is skipped.

    Args:
      name: of the test; a second minor would add its suffix.
      main: the pytest file.
      package: False for tests that do without the built packages.
      data: files, e.g. conftest.py and helpers, found below the workspace root.
      args: more arguments for pytest.
      env: environment of the test.
      tags: Bazel's tags.
      size: Bazel's size; large has a timeout of 15 minutes.
      sanitizers: True also runs it under --config=asan and ubsan.
      **kwargs: passed on to sh_test.
    """
    skip = ["notsan"] if sanitizers else ["notsan", "nosanitizer"]
    site = ["//tests/cudasim/package:site"] if package else []
    values = dict(env)
    if package:
        values["STRATALLOC_SITE"] = "$(rootpath //tests/cudasim/package:site)"
    for minor in TORCH_MINORS:
        suffix = "" if len(TORCH_MINORS) == 1 else "_torch_" + minor
        native.sh_test(
            name = name + suffix.replace(".", "_"),
            size = size,
            srcs = ["//third_party/torch:run_python.sh"],
            args = [
                "$(rootpath %s)" % _python(minor),
                "$(rootpath %s)" % main,
            ] + args,
            data = [
                main,
                _python(minor),
                "//third_party:requirements.txt",
            ] + data + site,
            env = values,
            tags = tags + skip + ["python"],
            **kwargs
        )
