# SPDX-License-Identifier: Apache-2.0
"""Upward includes and foreign names, each planted in a small tree."""

import unittest

from tests.repository.tidy.planted_tree import SPDX, RuleCase


class IncludesTest(RuleCase):
    def test_upward_include(self):
        self._expect(
            "upward_includes",
            "allocator/block.h:2: allocator includes tiering/tier.h",
            {"allocator/block.h": self._header('#include "tiering/tier.h"')},
        )

    def test_upward_include_between_rooms_of_one_folder(self):
        self._expect(
            "upward_includes",
            "allocator/cuda/cuda_api.h:2: allocator/cuda includes "
            "allocator/block.h",
            {"allocator/cuda/cuda_api.h":
             self._header('#  include "allocator/block.h"')},
        )

    def _folder(self, folder, header, line):
        """A folder with one header, of which `line` is all."""
        return {
            f"{folder}/BUILD.bazel": f"# {SPDX}"
            'load("//bazel:cc.bzl", "cc_folder")\ncc_folder(name = "all")\n',
            f"{folder}/{header}": self._header(line),
        }

    def test_upward_include_between_layers_of_allocator(self):
        self._expect(
            "upward_layers",
            "allocator/heap/pool.h:2: the layer heap of allocator includes "
            "allocator/ladder/rung.h",
            self._folder("allocator/heap", "pool.h",
                         '#include "allocator/ladder/rung.h"'),
        )

    def test_upward_include_between_layers_of_tiering(self):
        self._expect(
            "upward_layers",
            "tiering/io/ring.h:2: the layer io of tiering includes "
            "tiering/engine/engine.h",
            {**self._folder("tiering/io", "ring.h",
                            '#include "tiering/engine/engine.h"'),
             "tiering/README.md": ""},
        )

    def test_upward_include_between_layers_of_telemetry(self):
        self._expect(
            "upward_layers",
            "telemetry/recording/ring.h:2: the layer recording of telemetry "
            "includes telemetry/telemetry.h",
            {**self._folder("telemetry/recording", "ring.h",
                            '#include "telemetry/telemetry.h"'),
             "telemetry/README.md": ""},
        )

    def test_upward_include_between_layers_of_python_shim(self):
        for layer, header in (("core", "bridge_api/blocks.h"),
                              ("bridge_api", "c_api/c_api.h"),
                              ("c_api", "extensions/limited_api.h"),
                              ("extensions/frames", "torch_bridge/guard.h")):
            with self.subTest(layer):
                self._expect(
                    "upward_layers",
                    f"python_shim/{layer}/a.h:2: the layer "
                    f"{layer.partition('/')[0]} of python_shim includes "
                    f"python_shim/{header}",
                    {**self._folder(f"python_shim/{layer}", "a.h",
                                    f'#include "python_shim/{header}"'),
                     "python_shim/README.md": ""},
                )

    def test_upward_include_between_layers_of_the_torch_bridge(self):
        for layer, header in (("base", "collectives/coalescing.h"),
                              ("collectives", "autograd/lifetime_hint.h"),
                              ("autograd", "allocator/torch_allocator.h"),
                              ("allocator", "guard/op_guard.h"),
                              ("guard", "bench/bench_api.h")):
            with self.subTest(layer):
                self._expect(
                    "upward_layers",
                    f"python_shim/torch_bridge/{layer}/a.h:2: the layer "
                    f"{layer} of python_shim/torch_bridge includes "
                    f"python_shim/torch_bridge/{header}",
                    {**self._folder(f"python_shim/torch_bridge/{layer}", "a.h",
                                    "#include "
                                    f'"python_shim/torch_bridge/{header}"'),
                     "python_shim/README.md": ""},
                )

    def test_folder_without_a_place_among_the_layers(self):
        self._expect(
            "upward_layers",
            "allocator/attic/old.h: allocator/attic is no layer of allocator",
            self._folder("allocator/attic", "old.h", ""),
        )

    def test_code_that_includes_the_simulator(self):
        self._expect(
            "upward_includes",
            "allocator/block.h:2: allocator includes tests/simulator/cudasim/",
            {"allocator/block.h":
             self._header('#include "tests/simulator/cudasim/control.h"')},
        )

    def test_a_test_that_includes_upward(self):
        self._expect(
            "upward_includes",
            "allocator/block_test.cc:2: allocator includes python_shim/",
            {"allocator/block_test.cc":
             self._header('#include "python_shim/c_api/c_api.h"')},
        )

    def test_cuda_headers(self):
        for header in ("cuda_runtime_api.h", "cuda.h", "cub/cub.cuh",
                       "driver_types.h", "cuda/std/atomic"):
            with self.subTest(header):
                self._expect(
                    "cuda_headers",
                    f"allocator/block.h:2: CUDA header {header}",
                    {"allocator/block.h":
                     self._header(f"#include <{header}>")},
                )

    def test_torch_headers(self):
        for header in ("ATen/ATen.h", "c10/cuda/CUDAStream.h",
                       "torch/library.h"):
            with self.subTest(header):
                self._expect(
                    "torch_headers",
                    f"allocator/block.h:2: torch header {header}",
                    {"allocator/block.h":
                     self._header(f"#include <{header}>")},
                )

    def test_simulator_name(self):
        for path, text, name in (
            ("allocator/block.cc", "// libcudasim_torch.so", "libcudasim_torch"),
            ("allocator/block.h", 'Find("cudasim_calls");', "cudasim_calls"),
            ("python_shim/simulate.py", "import stratalloc_cudasim",
             "stratalloc_cudasim"),
            ("python_shim/simulate.py", 'environ["CUDASIM_MODE"]',
             "CUDASIM_MODE"),
        ):
            with self.subTest(text):
                mark = "# " if path.endswith(".py") else "// "
                self._expect(
                    "simulator_names",
                    f"{path}:2: {name}; the simulated device registers itself",
                    {path: f"{mark}{SPDX}{text}\n"},
                )

    def test_raw_mutex(self):
        for kind in ("std::mutex", "std::shared_mutex", "pthread_mutex_t",
                     "std::recursive_timed_mutex"):
            with self.subTest(kind):
                self._expect(
                    "raw_mutexes",
                    f"allocator/block.h:2: {kind}",
                    {"allocator/block.h": self._header(f"{kind} m;")},
                )

    def test_handle_entry(self):
        for way in ("HandleEntry", "handle.entry()", "region->entries"):
            with self.subTest(way):
                self._expect(
                    "handle_entries",
                    "tiering/guard.h:2: ",
                    {
                        "tiering/README.md": "",
                        "tiering/BUILD.bazel": f"# {SPDX}"
                        'cc_library(name = "all", hdrs = glob(["*.h"]))\n',
                        "tiering/guard.h": self._header(f"{way};"),
                        "allocator/block.h": self._header(f"{way};"),
                    },
                )


if __name__ == "__main__":
    unittest.main()
