# SPDX-License-Identifier: Apache-2.0
"""bridges.sh with stand-ins for Bazel and for the download of headers."""

import os
import pathlib
import subprocess
import tempfile
import unittest

_HERE = pathlib.Path(__file__).resolve().parent

# Bazel's output has the bridges of the torch that the options name.
_PROGRAM = """
set -euo pipefail
PYTHON=python BUILD=$PWD/build
say() { echo "$*" >&2; }
listed() { grep -hv '^#' "${@/#/third_party/}"; }
run_and_report() { echo "$*" >>log; }
bazel_bin() { echo "$PWD/bin"; }
bazel_build() {
  echo "bazel $*" >>log
  local minor=2_14 file
  [[ $* != *TORCH_HEADERS*/2.9.1* ]] || minor=2_9
  [[ $* != *TORCH_HEADERS*/2.15.0* ]] || minor=2_15
  [[ $minor != "${BROKEN:-}" ]] || return 1
  while read -r file; do
    mkdir -p "bin/$(dirname "$file")"
    echo "$minor" >"bin/$file"
  done < <(bridge_files $minor)
}
source third_party/torch/bridges.sh
mkdir -p build/bridges
touch build/bridges/stale.so
mapfile -t wanted < <(releases)
build_bridges "$BUILD/bridges" ${WANTED:-"${wanted[@]}"} -- --option
echo done >>log
"""


class BridgesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        for name, text in (
                ("torch/minors.txt", "# minors\n2.9.1\n2.14.1\n2.15.0\n"),
                ("torch/bridges.sh", (_HERE / "bridges.sh").read_text()),
                ("pip/build.txt", "# links\nnumpy==1\ntorch==2.14.1\n")):
            path = self.folder / "third_party" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def _run(self, **environment):
        done = subprocess.run(
            ["bash", "-c", _PROGRAM], cwd=self.folder, text=True, check=False,
            env={**os.environ, **environment}, capture_output=True, timeout=60)
        return done, (self.folder / "log").read_text().splitlines()

    def test_each_minor_leaves_three_libraries(self):
        done, _ = self._run()
        self.assertEqual(done.returncode, 0, done.stderr)
        found = {path.name: path.read_text().strip()
                 for path in (self.folder / "build/bridges").iterdir()}
        self.assertEqual(found, {
            f"lib{name}_torch_{minor}.so": minor
            for name in ("stratalloc", "stratalloc_bench", "cudasim")
            for minor in ("2_9", "2_14", "2_15")})

    def test_own_release_is_built_last_and_without_other_headers(self):
        _, log = self._run()
        build = str(self.folder / "build/torch")
        self.assertEqual(
            [line.split(" //")[0] for line in log if line != "done"], [
                "headers-2.9.1 python third_party/torch/headers.py 2.9.1 "
                + build,
                f"bazel --option --repo_env=TORCH_HEADERS={build}/2.9.1",
                "headers-2.15.0 python third_party/torch/headers.py 2.15.0 "
                + build,
                f"bazel --option --repo_env=TORCH_HEADERS={build}/2.15.0",
                "bazel --option"])

    def test_named_release_alone_is_built(self):
        done, _ = self._run(WANTED="2.9.1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(
            sorted(path.name for path in
                   (self.folder / "build/bridges").iterdir()),
            [f"lib{name}_torch_2_9.so"
             for name in ("cudasim", "stratalloc_bench", "stratalloc")])

    def test_failed_build_ends_the_program(self):
        done, log = self._run(BROKEN="2_15")
        self.assertNotEqual(done.returncode, 0)
        self.assertNotIn("done", log)


if __name__ == "__main__":
    unittest.main()
