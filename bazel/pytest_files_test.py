# SPDX-License-Identifier: Apache-2.0
"""Exit codes and test.xml of pytest_files.py, over files made here."""

import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest

_RUNNER = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                       "pytest_files.py")
_PASSES = "def test_passes():\n    pass\n"
_FAILS = "def test_fails():\n    assert False\n"
_LONG = ("import pytest\n@pytest.mark.long\ndef test_takes_hours():\n"
         "    pass\n")
_ENDED = "import os\ndef test_ends_the_process():\n    os._exit(0)\n"
_KILLED = "import os\ndef test_is_killed():\n    os.kill(os.getpid(), 9)\n"


@pytest.fixture(name="run")
def run_fixture(tmp_path):
    """run(texts, *arguments, more=(), **environment) -> (exit code, cases).

    more: arguments of pytest. cases: name -> whether it passed, of test.xml.
    """
    def run(texts, *arguments, more=(), **environment):
        files = []
        for number, text in enumerate(texts):
            files.append(tmp_path / f"test_{number}.py")
            files[-1].write_text(text)
        xml = tmp_path / "test.xml"
        values = {key: value for key, value in os.environ.items()
                  if not key.startswith(("TEST_", "STRATALLOC"))}
        done = subprocess.run(
            [sys.executable, _RUNNER, *arguments, *map(str, files), "--",
             *more],
            env={**values, "TEST_TMPDIR": str(tmp_path),
                 "XML_OUTPUT_FILE": str(xml), **environment},
            capture_output=True, text=True, check=False)
        cases = {case.get("name"): case.find("failure") is None
                 for case in ElementTree.parse(xml).iter("testcase")}
        return done.returncode, cases

    return run


@pytest.mark.parametrize("way", [(), ("--fresh",)], ids=["forked", "fresh"])
def test_one_failing_file_fails_the_run(run, way):
    code, cases = run([_PASSES, _FAILS], *way)
    assert (code, cases) == (1, {"test_passes": True, "test_fails": False})


@pytest.mark.parametrize("way", [(), ("--fresh",)], ids=["forked", "fresh"])
def test_killed_file_is_a_failed_case(run, way):
    code, cases = run([_KILLED, _PASSES], *way)
    assert (code, cases) == (1, {"process": False, "test_passes": True})


@pytest.mark.parametrize("way", [(), ("--fresh",)], ids=["forked", "fresh"])
def test_file_that_ends_the_process_with_success_fails(run, way):
    code, cases = run([_ENDED, _PASSES], *way)
    assert (code, cases) == (1, {"process": False, "test_passes": True})


def test_long_cases_run_with_long_alone(run):
    texts = [_PASSES, _PASSES + _LONG]
    assert run(texts, "--fresh") == (0, {"test_passes": True})
    assert run(texts, "--fresh", "--long") == (0, {"test_takes_hours": True})


def test_long_without_a_long_case_fails(run):
    assert run([_PASSES], "--fresh", "--long")[0] == 1


def test_file_of_long_cases_alone_fails_per_change(run):
    assert run([_LONG], "--fresh")[0] == 1


def test_expression_that_matches_nothing_fails(run):
    code, cases = run([_PASSES, _PASSES], "--fresh",
                      more=("-k", "absent_name"))
    assert (code, cases) == (1, {})


def test_expression_that_matches_one_file_passes(run):
    code, cases = run([_PASSES, _FAILS], "--fresh",
                      more=("-k", "test_passes"))
    assert (code, cases) == (0, {"test_passes": True})


def test_shards_run_each_file_once(run):
    texts = [f"def test_{name}():\n    pass\n" for name in "abcde"]
    found = [run(texts, "--fresh", TEST_TOTAL_SHARDS="2",
                 TEST_SHARD_INDEX=str(index)) for index in range(2)]
    assert [code for code, _ in found] == [0, 0]
    assert sorted(name for _, cases in found for name in cases) == [
        "test_a", "test_b", "test_c", "test_d", "test_e"]


@pytest.mark.parametrize("option", [("-k", "absent_name"), ("-kabsent_name",)])
def test_expression_that_matches_nothing_fails_in_each_shard(run, option):
    for index in range(2):
        code, cases = run([_PASSES, _PASSES], "--fresh", more=option,
                          TEST_TOTAL_SHARDS="2", TEST_SHARD_INDEX=str(index))
        assert (code, cases) == (1, {})


def test_expression_that_matches_in_another_shard_passes(run):
    texts = [_PASSES, "def test_other():\n    pass\n"]
    found = [run(texts, "--fresh", more=("-k", "test_other"),
                 TEST_TOTAL_SHARDS="2", TEST_SHARD_INDEX=str(index))
             for index in range(2)]
    assert found == [(0, {}), (0, {"test_other": True})]
