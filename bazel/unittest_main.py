# SPDX-License-Identifier: Apache-2.0
"""Runs one unittest file and writes the cases as JUnit XML for Bazel.

Bazel's own test.xml for a Python test is one case whatever the file holds;
`./dev test` counts cases.
"""

import importlib.util
import os
import sys
import time
import unittest
from xml.sax.saxutils import escape, quoteattr


class _Result(unittest.TextTestResult):
    """Remembers every case with its seconds and, if it failed, the reason."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.cases = []
        self._began = 0.0

    def startTest(self, test):
        super().startTest(test)
        self._began = time.monotonic()
        self.cases.append([test.id(), 0.0, ""])

    def stopTest(self, test):
        self.cases[-1][1] = time.monotonic() - self._began
        super().stopTest(test)

    def _note(self, test, error):
        if not self.cases or self.cases[-1][0] != test.id():
            self.cases.append([test.id(), 0.0, ""])  # setUpClass and the like
        self.cases[-1][2] = self._exc_info_to_string(error, test)

    def addError(self, test, err):
        super().addError(test, err)
        self._note(test, err)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._note(test, err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._note(test, err)


def _xml(cases):
    failed = sum(1 for case in cases if case[2])
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites tests="{len(cases)}" failures="{failed}">',
        f'<testsuite name="unittest" tests="{len(cases)}" '
        f'failures="{failed}">',
    ]
    for name, seconds, reason in cases:
        lines.append(
            f'<testcase name={quoteattr(name)} time="{seconds:.3f}">'
        )
        if reason:
            lines.append(f"<failure>{escape(reason)}</failure>")
        lines.append("</testcase>")
    return "\n".join(lines + ["</testsuite>", "</testsuites>", ""])


def main():
    path = sys.argv[1]
    spec = importlib.util.spec_from_file_location("test", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["test"] = module
    spec.loader.exec_module(module)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    runner = unittest.TextTestRunner(resultclass=_Result, verbosity=2)
    result = runner.run(suite)
    out = os.environ.get("XML_OUTPUT_FILE")
    if out:
        with open(out, "w", encoding="utf-8") as stream:
            stream.write(_xml(result.cases))
    if not result.cases:
        sys.exit(f"{path} holds no test")
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
