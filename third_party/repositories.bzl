# SPDX-License-Identifier: Apache-2.0
"""Every outside dependency, from system packages and the private .venv."""

load("//third_party/cuda:cuda_repository.bzl", "cuda_repository")
load("//third_party/python:python_repository.bzl", "python_repository")
load("//third_party/system:system_library.bzl", "system_library")
load("//third_party/torch:bridges_repository.bzl", "bridges_repository")
load("//third_party/torch:torch_repository.bzl", "torch_repository")

# name: (header that proves it is there, libraries, static archive, package)
_SYSTEM_LIBRARIES = {
    "benchmark": (
        "benchmark/benchmark.h",
        ["benchmark_main", "benchmark"],
        False,
        "libbenchmark-dev",
    ),
    "expected": ("tl/expected.hpp", [], False, "libexpected-dev"),
    "googletest": (
        "gmock/gmock.h",
        ["gmock_main", "gmock", "gtest"],
        False,
        "libgtest-dev libgmock-dev",
    ),
    "liblz4": ("lz4.h", ["lz4"], True, "liblz4-dev"),
    "liburing": ("liburing.h", ["uring"], True, "liburing-dev"),
    "libzstd": ("zstd.h", ["zstd"], True, "libzstd-dev"),
    "nlohmann_json": ("nlohmann/json.hpp", [], False, "nlohmann-json3-dev"),
    "robin_map": ("tsl/robin_map.h", [], False, "robin-map-dev"),
    "xxhash": ("xxhash.h", ["xxhash"], True, "libxxhash-dev"),
    "zlib": ("zlib.h", ["z"], True, "zlib1g-dev"),
}

def stratalloc_repositories():
    """Declares every external repository of the workspace."""

    # Debian's Bazel has an empty version and no rule sets embedded; a release
    # build of Bazel brings these four itself.
    if not native.bazel_version:
        native.local_repository(
            name = "rules_cc",
            path = "third_party/rules_cc",
        )
        native.local_repository(
            name = "remote_coverage_tools",
            path = "third_party/coverage_tools",
        )
        native.local_repository(
            name = "rules_java",
            path = "/usr/share/bazel/rules/java",
        )
        native.local_repository(
            name = "rules_proto",
            path = "/usr/share/bazel/rules/proto",
        )
    native.register_toolchains("//third_party/python:toolchain")
    for name, (hdr, libs, static, apt) in _SYSTEM_LIBRARIES.items():
        system_library(
            name = name,
            apt = apt,
            hdr = hdr,
            libs = libs,
            static = static,
        )
    cuda_repository(name = "cuda")
    python_repository(name = "python_headers")
    bridges_repository(name = "bridges")
    torch_repository(name = "torch")
