# SPDX-License-Identifier: Apache-2.0
"""Python run by the system's interpreter: tools and their tests."""

py_binary = native.py_binary
py_library = native.py_library

def py_test(name, main, srcs = [], data = [], deps = [], tags = [], **kwargs):
    """A unittest file whose cases are counted one by one in test.xml.

    Args:
      name: of the test.
      main: the unittest file.
      srcs: more sources.
      data: files it reads.
      deps: py_library targets.
      tags: Bazel's tags.
      **kwargs: passed on.
    """
    native.py_test(
        name = name,
        srcs = ["//bazel:unittest_main.py", main] + srcs,
        args = ["$(rootpath %s)" % main],
        data = data,
        main = "//bazel:unittest_main.py",
        tags = tags + ["nosanitizer", "notsan"],
        deps = deps,
        **kwargs
    )
