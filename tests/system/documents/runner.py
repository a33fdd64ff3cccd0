# SPDX-License-Identifier: Apache-2.0
"""Extracts the blocks of documents and runs them, our allocator underneath, on
the simulated device; a row for each block of the manifest.

A row's result is one of
    passed      run, its epilogue too
    failed      it raised, or its process ended in it
    differs     the document does not have these lines there
    missing     the document is not in the folder
    unlisted    the document has a block that the manifest has not
    listed      of a kind that is not run
    not run     an earlier block ended the process
"""

import json
import os
import subprocess
import sys
import tempfile

from tests.system.documents import extract

BAD = ("failed", "differs", "missing", "unlisted", "not run")
_ROOT = os.path.abspath(os.path.join(__file__, *[os.pardir] * 4))
_LIMIT = 1800  # seconds of one group; an hour's worth of steps is not meant


def row(document, block, result, **more):
    return {"id": document.id_of(block), "document": document.name,
            "lines": list(block.lines), "kind": block.kind,
            "result": result, "seconds": None, "error": None,
            "made_of": block.made_of, **more}


def run_document(document, folder, only=None):
    """Rows of all blocks, or of those whose ids are in `only` and, as names
    build on one another, of what comes before them in their group."""
    path = os.path.join(folder, document.file)
    try:
        lines = extract.lines_of(path)
    except OSError as error:
        return [row(document, block, "missing", error=str(error))
                for block in document.blocks]
    except UnicodeDecodeError as error:
        return [row(document, block, "differs", error=str(error))
                for block in document.blocks]
    rows, tasks = {}, {}
    for block in _asked(document, only):
        try:
            extract.of(block, lines)
            text = (extract.program(block, lines)
                    if block.kind == "run" else "")
        except ValueError as error:
            rows[block] = row(document, block, "differs", error=str(error))
            continue
        if block.is_run:
            tasks.setdefault(block.group, []).append((block, text))
        else:
            rows[block] = row(document, block, "listed")
    for group, parts in tasks.items():
        rows.update(_run_group(document, group, parts))
    found = [rows[block] for block in document.blocks if block in rows]
    return found + ([] if only else list(_unlisted(document, lines)))


def _asked(document, only):
    if only is None:
        return document.blocks
    last = {}
    for number, block in enumerate(document.blocks):
        if document.id_of(block) in only:
            last[block.group] = number
    return [block for number, block in enumerate(document.blocks)
            if number <= last.get(block.group, -1)]


def _unlisted(document, lines):
    known = {block.lines for block in document.blocks}
    covered = [block.lines for block in document.blocks]
    for first, last in extract.marked(lines, document.format):
        inside = any(a <= first and last <= b or first <= a and b <= last
                     for a, b in covered)
        if (first, last) not in known and not inside:
            yield {"id": f"{document.name}:{first}",
                   "document": document.name, "lines": [first, last],
                   "kind": "", "result": "unlisted", "seconds": None,
                   "error": "the manifest has no such block", "made_of": ""}


def _task(document, group, parts):
    settings = document.groups[group]
    return {
        "document": document.name, "prelude": document.prelude,
        "card": settings.card, "devices": settings.devices,
        "enabled_by": settings.enabled_by,
        "blocks": [{"id": document.id_of(block), "lines": list(block.lines),
                    "program": text, "prelude": block.prelude,
                    "epilogue": block.epilogue, "fresh": block.fresh}
                   for block, text in parts]}


def _environment(settings):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("STRATALLOC")}
    environment["PYTHONPATH"] = os.pathsep.join(
        [_ROOT] + environment.get("PYTHONPATH", "").split(os.pathsep))
    environment["MPLBACKEND"] = "Agg"
    if settings.enabled_by == "environment":
        environment.update(STRATALLOC="1", STRATALLOC_STRICT="1")
    if settings.conf:
        environment["STRATALLOC_CONF"] = settings.conf
    return environment


def _run_group(document, group, parts):
    """Block -> row, of one process."""
    with tempfile.TemporaryDirectory() as scratch:
        task = os.path.join(scratch, "task.json")
        result = os.path.join(scratch, "result.json")
        with open(task, "w", encoding="utf-8") as stream:
            json.dump(_task(document, group, parts), stream)
        work = os.path.join(scratch, "work")
        os.mkdir(work)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "tests.system.documents.child", task, result],
                cwd=work, env=_environment(document.groups[group]), text=True,
                capture_output=True, check=False, timeout=_LIMIT)
            said = f"exit code {done.returncode}: {done.stderr[-3000:]}"
            code = done.returncode
        except subprocess.TimeoutExpired:
            said, code = f"no end after {_LIMIT} s", 1
        try:
            with open(result, encoding="utf-8") as stream:
                results = {found["id"]: found for found in json.load(stream)}
        except OSError:
            results = {}
    return _rows(document, parts, results, said if code else None)


def _rows(document, parts, results, ended):
    rows = {}
    for block, _ in parts:
        found = results.get(document.id_of(block))
        if found is not None:
            rows[block] = row(
                document, block, "failed" if found["error"] else "passed",
                seconds=round(found["seconds"], 2), error=found["error"])
        else:
            rows[block] = row(document, block, "not run", error=ended)
    if ended is not None:
        # The first that is not there ended it; else the process's own end.
        block = next((block for block, _ in parts
                      if rows[block]["result"] == "not run"), parts[-1][0])
        rows[block].update(result="failed", error=ended)
    return rows
