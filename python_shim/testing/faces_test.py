# SPDX-License-Identifier: Apache-2.0
"""What the shared objects offer each other is what their headers say.

The core has two faces: C functions for Python (python_shim/c_api/) and C++ for
the torch bridge (python_shim/bridge_api/). A compiler checks neither across two
files that are loaded at run time.
"""

import glob
import os
import re
import subprocess
import unittest

_ROOM = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CORE = os.path.join(_ROOM, "libstratalloc.so")
(_BRIDGE,) = glob.glob(
    os.path.join(_ROOM, "torch_bridge", "libstratalloc_torch_2_*.so"))
_MINORS = os.path.join(os.path.dirname(_ROOM), "third_party", "torch",
                       "minors.txt")
_C_HEADERS = ("c_api/*.h", "core/evictable_range.h")
_CPP = "stratalloc::core::"
# A declaration's name is the first that is followed by a parameter list, or a
# variable's.
_DECLARED = re.compile(r"STRATALLOC_API\b[^;{}]*?\b(\w+)\s*(?:\(|;)")


def _code(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r"^\s*#[^\n]*", "", text, flags=re.MULTILINE)


def _declared(paths):
    return {name for path in paths for name in _DECLARED.findall(_code(path))}


def _symbols(path, which):
    """Names without parameters, as C++ writes them."""
    out = subprocess.run(["nm", "-DC", which, path], check=True,
                         capture_output=True, text=True).stdout
    names = (line.split(maxsplit=2 if which == "--defined-only" else 1)[-1]
             for line in out.splitlines())
    return {re.split(r"[(\[@]", name)[0].strip() for name in names}


def _minor_of_the_bridge():
    return int(re.search(r"_2_(\d+)\.so$", _BRIDGE).group(1))


def _newest_minor():
    with open(_MINORS, encoding="utf-8") as file:
        return max(int(line.split(".")[1]) for line in file
                   if line.strip() and not line.startswith("#"))


class FacesTest(unittest.TestCase):

    def setUp(self):
        self.offered = _symbols(_CORE, "--defined-only")
        self.c_functions = _declared(
            path for pattern in _C_HEADERS
            for path in glob.glob(os.path.join(_ROOM, pattern)))
        self.cpp_functions = {
            _CPP + name for name in _declared(
                glob.glob(os.path.join(_ROOM, "bridge_api", "*.h")))}

    def test_the_core_offers_what_its_headers_declare(self):
        self.assertGreater(len(self.c_functions), 20)
        self.assertGreater(len(self.cpp_functions), 50)
        self.assertEqual(self.offered, self.c_functions | self.cpp_functions)

    def test_the_core_needs_no_library_that_a_machine_may_lack(self):
        out = subprocess.run(["readelf", "-d", _CORE], check=True,
                             capture_output=True, text=True).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.*?)\.so", out)
        self.assertLessEqual(set(needed), {
            "ld-linux-x86-64", "libc", "libdl", "libgcc_s", "libm",
            "libpthread", "libstdc++"})
        self.assertIn("libc", needed)

    def test_the_bridge_needs_nothing_else_of_the_core(self):
        needed = {name for name in _symbols(_BRIDGE, "--undefined-only")
                  if name.startswith("stratalloc")}
        evictable = {name for name in self.c_functions
                     if name.startswith("stratalloc_evictable_")}
        offered = self.cpp_functions | evictable
        self.assertEqual(needed - offered, set())
        # Only the bridge calls C++, so each function has a caller there. A
        # caller may be a virtual function that older minors of torch lack.
        if _minor_of_the_bridge() == _newest_minor():
            self.assertEqual(offered - needed, set())

    def test_neither_can_take_a_function_of_the_other_for_its_own(self):
        # "stratalloc_malloc" is the bridge's, for torch to look up.
        bridge = _symbols(_BRIDGE, "--defined-only")
        self.assertIn("stratalloc_malloc", bridge)
        self.assertEqual(
            {name for name in bridge & self.offered if "strat" in name}, set())


if __name__ == "__main__":
    unittest.main()
