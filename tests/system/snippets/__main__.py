# SPDX-License-Identifier: Apache-2.0
"""Prints the list of snippets with what was done with each; 1 if one failed."""

import os
import sys
import tempfile

from tests.system.snippets import verdicts

if __name__ == "__main__":
    failed = executed = 0
    verdicts.set_root(os.getcwd())
    with tempfile.TemporaryDirectory() as place:
        for one in verdicts.all_of(os.getcwd(), place):
            executed += one.done == "executed"
            failed += bool(one.error)
            print(f"{'FAILED' if one.error else 'ok':<7}{one.snippet.where:<50}"
                  f"{one.done}: {one.snippet.first}")
            if one.error:
                print("       " + one.error.strip().replace("\n", "\n       "))
    print(f"{executed} executed, {failed} failed")
    sys.exit(bool(failed))
