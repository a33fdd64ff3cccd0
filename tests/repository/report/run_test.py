# SPDX-License-Identifier: Apache-2.0
"""The runner over a planted Bazel: its lines, its files, its interruption."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

_ROOT = pathlib.Path(__file__).resolve().parents[3]

# Writes the events it is given and waits for what the test says.
_BAZEL = """#!/usr/bin/env python3
import json, os, signal, sys
with open("arguments.json", "w") as file:
    json.dump(sys.argv[1:], file)
signal.signal(signal.SIGINT, lambda *_: sys.exit(8))
(events,) = [one.partition("=")[2] for one in sys.argv
             if one.startswith("--build_event_json_file=")]
for step in json.load(open("steps.json")):
    if "event" in step:
        with open(events, "a") as file:
            file.write(json.dumps(step["event"]) + "\\n")
    elif "output" in step:
        print(step["output"], file=sys.stderr, flush=True)
    elif "wait" in step:
        open(step["wait"]).read()  # a pipe that the test closes
    else:
        sys.exit(step["exit"])
"""
_XML = '<testsuites><testcase name="A" classname="S"/></testsuites>'


class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        bazel = self.folder / "bin" / "bazel"
        bazel.parent.mkdir()
        bazel.write_text(_BAZEL)
        bazel.chmod(0o755)
        (self.folder / "test.xml").write_text(_XML)
        os.mkfifo(self.folder / "pipe")

    def _passed(self, label):
        uri = (self.folder / "test.xml").as_uri()
        return [
            {"event": {"id": {"targetConfigured": {"label": label}},
                       "configured": {"targetKind": "cc_test rule"}}},
            {"event": {"id": {"targetCompleted": {"label": label}},
                       "completed": {"success": True}}},
            {"event": {"id": {"testResult": {"label": label}},
                       "testResult": {
                           "testActionOutput": [
                               {"name": "test.xml", "uri": uri}],
                           "testAttemptDurationMillis": "2000"}}},
            {"event": {"id": {"testSummary": {"label": label}},
                       "testSummary": {"overallStatus": "PASSED"}}},
        ]

    def _start(self, steps, *arguments):
        (self.folder / "steps.json").write_text(json.dumps(steps))
        environment = dict(os.environ, PYTHONPATH=str(_ROOT))
        environment["PATH"] = f"{self.folder}/bin:{os.environ['PATH']}"
        return subprocess.Popen(
            [sys.executable, "-m", "tests.repository.report.run", "--every", "0",
             *arguments],
            cwd=self.folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def _run(self, steps, *arguments):
        process = self._start(steps, *arguments)
        out, errors = process.communicate()
        return process.returncode, out.splitlines(), errors.splitlines()

    def test_test_run_shows_progress_then_the_report(self):
        code, out, errors = self._run(
            [*self._passed("//a:t"), {"output": "[3 / 4] Testing"},
             {"output": "INFO: Build completed successfully"},
             {"output": "FAIL: //a:u (see /log)"}, {"exit": 0}],
            "test", "//a:t", "--jobs=1")
        self.assertEqual((code, out[-1]), (0, "1 passed, 0 failed"))
        self.assertIn("FAIL: //a:u (see /log)", errors)
        self.assertNotIn("[3 / 4] Testing", errors)
        self.assertNotIn("INFO: Build completed successfully", errors)
        self.assertIn("3 / 4 actions, 1 / 1 test targets, 0 failed",
                      errors[-1])
        arguments = json.loads((self.folder / "arguments.json").read_text())
        self.assertEqual((arguments[0], arguments[-2:]),
                         ("test", ["//a:t", "--jobs=1"]))

    def test_build_returns_the_status_of_bazel_and_prints_no_report(self):
        code, out, _ = self._run([{"exit": 3}], "build", "//a")
        self.assertEqual((code, out), (3, []))

    def test_bazel_that_does_not_start_is_a_failure(self):
        code, _, errors = self._run([{"exit": 2}], "test", "//a")
        self.assertEqual(code, 1)
        self.assertIn("dev: bazel test did not start (status 2)", errors)

    def test_seconds_of_a_run_are_kept_for_the_next(self):
        steps = [*self._passed("//a:t"), {"exit": 0}]
        self._run(steps, "--seconds", "kept.json", "test", "//a:t")
        kept = json.loads((self.folder / "kept.json").read_text())
        self.assertEqual(kept, {"//a:t": 2.0})

    def test_no_escape_sequence_reaches_a_pipe(self):
        _, out, errors = self._run(
            [*self._passed("//a:t"), {"exit": 0}], "test", "//a:t")
        self.assertNotIn("\x1b", "".join(out + errors))
        self.assertNotIn("\r", "".join(errors))

    def _interrupt(self, number):
        unfinished = {"id": {"targetConfigured": {"label": "//a:u"}},
                      "configured": {"targetKind": "cc_test rule"}}
        process = self._start(
            [*self._passed("//a:t"), {"event": unfinished},
             {"output": "the second test starts"}, {"wait": "pipe"}],
            "--long", "test", "//a:all")
        for line in process.stderr:
            if "the second test starts" in line:
                break
        process.send_signal(number)
        out, _ = process.communicate()
        return process.returncode, out.splitlines()

    def test_interrupted_run_reports_what_has_ended(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            code, out = self._interrupt(number)
            self.assertEqual(code, 1)
            self.assertIn(
                "  bazel: interrupted, 1 targets without a result", out)
            self.assertRegex(
                out[-1], r"^1 passed, 1 failed, \d+ s, 0 targets resumed$")


if __name__ == "__main__":
    unittest.main()
