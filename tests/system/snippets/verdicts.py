# SPDX-License-Identifier: Apache-2.0
"""One verdict per snippet: executed, checked, or why neither.

    python -m tests.system.snippets     # the list, in a checkout with built packages
"""

import ast
import contextlib
import dataclasses
import io
import itertools
import os
import re
import shutil

from tests.system.snippets import (
    commands, extract, manifest, running, spans, walks)


@dataclasses.dataclass(frozen=True)
class Verdict:
    snippet: extract.Snippet
    done: str  # "executed", "parsed", "resolved", "looked up", or a reason
    error: str = ""


def all_of(root, folder):
    """Verdicts on every snippet. folder: an empty one, where they run."""
    running.prepare()
    _made_files(root, folder)
    yield from _of_pages(_unique(extract.blocks(root)), root, folder)
    import stratalloc

    for one in extract.docstrings(root, stratalloc._NAMES):
        yield from _of_block(one, root, folder)
    for one in [*extract.spans(root), *extract.helps(_help)]:
        yield from _of_span(one)


def _of_pages(snippets, root, folder):
    """Blocks by page, those of a walk in its folder."""
    for path, blocks in itertools.groupby(snippets, lambda one: one.file):
        if not path.startswith(manifest.WALKS):
            for one in blocks:
                yield from _of_block(one, root, folder)
            continue
        walk = walks.Walk(root, path, folder)
        for one in blocks:
            if one.kind == "python" and walk.write(one):
                yield Verdict(one, "written")
            elif one.kind == "console":
                for line, error in walk.commands(one):
                    yield Verdict(line, "executed", error)
            else:
                yield from _of_block(one, root, walk.folder)
        for one in walk.unused.values():
            yield Verdict(one, "written", "no command of the page runs it")


def _unique(snippets):
    return list(dict.fromkeys(snippets))


def _help(words):
    from stratalloc.cli import command_line as cli

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        cli.main(words)
    return out.getvalue()


def _made_files(root, folder):
    """What commands of the pages read."""
    shutil.copy(os.path.join(root, "tests/system/snippets/gpt.py"), folder)
    done = running.program("stratalloc run --simulate 48MiB --record run.strata "
                         "gpt.py", folder)
    assert done[0] == 0, done[1]
    for name in ("before.strata", "trained.strata"):
        shutil.copy(os.path.join(folder, "run.strata"),
                    os.path.join(folder, name))
    with open(os.path.join(folder, "killed.py"), "w", encoding="utf-8") as file:
        file.write("import os, torch\nkept = torch.ones(9, device='cuda')\n"
                   "os.kill(os.getpid(), 9)\n")
    running.program("stratalloc run --simulate 48MiB --record killed.strata "
                  "killed.py", folder)
    done = running.in_fork(_write_snapshot, folder)
    assert done[0] == 0, done[1]


def _write_snapshot():
    import torch

    torch.cuda.memory._record_memory_history()
    kept = torch.ones(1 << 20, device="cuda")
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
    del kept


def _reason(one):
    return next((reason for (file, first), reason in manifest.LEFT.items()
                 if file == one.file and one.first.startswith(first)), None)


def _of_block(one, root, folder):
    reason = _reason(one)
    if reason is not None:
        yield Verdict(one, reason)
    elif one.kind == "yaml":
        yield Verdict(one, "parsed", _of_yaml(one.text))
    elif one.kind == "text" or one.kind == "" and not one.text.startswith("$ "):
        yield Verdict(one, manifest.OUTPUT)
    elif one.kind == "python" or one.kind == "docstring" and _is_python(one):
        # What comes before torch needs an interpreter without it.
        if re.search("^import torch", one.text, re.M):
            code, out = running.fresh(one.text, folder)
        else:
            code, out = running.block(one.text, folder, one.kind == "docstring"
                                      and "import " not in one.text)
        yield Verdict(one, "executed", "" if code == 0 else out)
    elif one.kind == "docstring" and not commands.begins(one.text):
        yield Verdict(one, manifest.TABLE)
    else:
        for line in commands.lines(one.text):
            yield _of_line(one, line, root, folder)


def _of_yaml(text):
    """What is wrong with a container's settings, or ""."""
    import yaml
    from stratalloc.settings import Config

    try:
        found = {one["name"]: one["value"] for one in yaml.safe_load(text)["env"]}
        Config.from_env(found)
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _is_python(one):
    try:
        ast.parse(one.text)
    except SyntaxError:
        return False
    return True


def _of_line(one, line, root, folder):
    told = dataclasses.replace(one, text=line)
    try:
        done = commands.check(line, root, os.path.dirname(one.file))
    except spans.Wrong as error:
        return Verdict(told, "checked", str(error))
    if done == "parsed" and one.text.startswith("$ "):
        if line in manifest.NOT_RUN:
            return Verdict(told, manifest.NOT_RUN[line])
        code, out = running.command(line, folder)
        # "does not fit" is 1, a recording that lacks something 4.
        good = (0, 1, 4) if line.startswith("stratalloc fit") else (0,)
        return Verdict(told, "executed", "" if code in good else
                       f"exit code {code}: {out}")
    by = manifest.RUN_BY.get(os.path.dirname(one.file))
    return Verdict(told, f"{done}; its folder's program is run by {by}"
                   if by and done == "parsed" else done)


def _of_span(one):
    words = one.text.split(" ")
    try:
        if words[0] in ("stratalloc", "./dev") and len(words) > 1:
            commands.check(one.text, _root, os.path.dirname(one.file))
            yield Verdict(one, "parsed")
        elif words[0] in ("run", "estimate") and words[1:2] and (
                words[1].startswith("--")):
            commands.stratalloc(words)
            yield Verdict(one, "parsed")
        elif words[0] == "bazel" and any(word.startswith("//")
                                         for word in words):
            commands.check(one.text, _root, os.path.dirname(one.file))
            yield Verdict(one, "looked up")
        elif one.file.startswith(manifest.USERS) or (
                one.text.startswith("stratalloc.")):
            done = spans.check(one.text)
            if done:
                yield Verdict(one, done)
    except spans.Wrong as error:
        yield Verdict(one, "checked", str(error))


_root = os.getcwd()


def set_root(root):
    global _root
    _root = root
