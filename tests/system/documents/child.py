# SPDX-License-Identifier: Apache-2.0
"""Runs the blocks of one group, one after another, in a process of its own.

    python -m tests.system.documents.child TASK RESULT

TASK is what runner.py writes, RESULT the file this writes after every block,
so that what ended a process is known: {"id", "seconds", "error", "printed"}.
A block that fails does not keep the next ones from being tried.
"""

import contextlib
import io
import json
import os
import sys
import time
import traceback

_STAND_INS = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                          "stand_ins")


def _compiled(text, name, first=1):
    """Its lines have the numbers that they have in the document."""
    return compile("\n" * (first - 1) + text, name, "exec")


def _run(block, names, task):
    """What the block printed; raises what it raises."""
    printed = io.StringIO()
    where = f"{task['document']}:{block['lines'][0]}"
    exec(_compiled(block["prelude"], f"<prelude of {where}>"), names)
    with contextlib.redirect_stdout(printed):
        if block["program"]:
            exec(_compiled(block["program"], f"<{task['document']}>",
                           block["lines"][0]), names)
    names["printed"] = printed.getvalue()
    exec(_compiled(block["epilogue"], f"<epilogue of {where}>"), names)
    return printed.getvalue()


def _names(task):
    names = {"__name__": "__main__"}
    exec(_compiled(task["prelude"], "<prelude>"), names)
    return names


def _start(task):
    """The device, and for documents of a module its name."""
    from stratalloc import simulate

    simulate.load(task["card"], devices=task["devices"])
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, _STAND_INS)
    if task["enabled_by"] == "import":
        from stratalloc import compat

        compat.install()


def main(task_file, result_file):
    with open(task_file, encoding="utf-8") as stream:
        task = json.load(stream)
    _start(task)
    results, names = [], None
    for block in task["blocks"]:
        began, error, printed = time.monotonic(), None, ""
        try:
            if names is None or block["fresh"]:
                names = _names(task)
            printed = _run(block, names, task)
        except Exception:  # of any kind: the block's
            error = traceback.format_exc()
        results.append({
            "id": block["id"], "seconds": time.monotonic() - began,
            "error": error, "printed": printed})
        with open(result_file, "w", encoding="utf-8") as stream:
            json.dump(results, stream)
    import stratalloc

    if not stratalloc.is_enabled():
        sys.exit("the blocks ran without stratalloc")


if __name__ == "__main__":
    main(*sys.argv[1:])
