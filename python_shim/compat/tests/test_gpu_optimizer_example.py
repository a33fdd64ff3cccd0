# SPDX-License-Identifier: Apache-2.0
"""The example of MemoryTracer runs as its README says, and its files open."""

import json
import pathlib
import re
import shlex
import shutil

from bazel import programs
from stratalloc.telemetry.checks import speedscope, timeline

_EXAMPLE = pathlib.Path("python_shim/examples/memory_tracer")


def test_the_demo_runs_as_its_readme_says(tmp_path):
    shutil.copytree(_EXAMPLE, tmp_path / "demo")
    readme = (_EXAMPLE / "README.md").read_text()
    shell, = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)
    command, = (line for line in shell.splitlines()
                if line.startswith("stratalloc "))
    done = programs.run("-m", "stratalloc", *shlex.split(command)[1:],
                        cwd=tmp_path / "demo")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    parts = re.split(r"\n\d\. .*\n-+\n", done.stdout)[1:]
    assert len(parts) == 5
    basic, fragments, transformer, files, cost = parts
    assert "MemoryTracer, cuda:0: " in basic and "of 6 layers" in basic
    shares = re.findall(r"^  \S.* +(\d+\.\d)%$", fragments, re.MULTILINE)
    assert len(shares) == 6 and all(0 < float(one) < 100 for one in shares)
    assert "blocks.3" in transformer and "(no layer)" in transformer
    assert "advice: " in transformer
    assert re.search(r"took \d\.\d+ times as long", cost)
    folder = tmp_path / "demo" / "traced"
    assert not speedscope.check(folder / "profile.json")
    assert not timeline.check(folder / "timeline.json")
    layers = json.loads((folder / "timeline.json").read_text())["layer_stats"]
    assert {"", "embed", "blocks.0", "blocks.3.mlp.2", "head"} <= set(layers)
    assert "blocks.0.attention" in layers
    assert files.count("traced/") == 2
