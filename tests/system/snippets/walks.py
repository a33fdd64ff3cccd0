# SPDX-License-Identifier: Apache-2.0
"""Pages whose programs and commands run in the order in which they stand.

A page of `manifest.WALKS` has a folder of its own. A block of Python whose
first line is `# NAME.py` is written there as that file. Each line behind `$ `
is executed there, and must print what stands below it: numbers and widths of
columns may differ, and `[…]` stands for lines, or a part of one, that are not
shown. A command ends with code 0, or with 1 where the page shows an exception
or `stratalloc fit` says that a run does not fit.
"""

import dataclasses
import glob
import os
import re
import shlex
import shutil

from bazel import programs
from tests.system.snippets import manifest

SECONDS = 180  # that a command may take
_NAMED = re.compile(r"# (\w+\.i?py)\n")
_FAILS = re.compile(r"^[\w.]*(?:Error|Exception)\b|does not fit", re.M)
_ELLIPSIS = "[…]"
# Programs of a page's commands, as the words that Python runs.
_PROGRAMS = {"stratalloc": ["-m", "stratalloc"], "python": [],
             "pytest": ["-m", "pytest"],
             "torchrun": ["-m", "torch.distributed.run"]}


class Walk:
    """The folder of a page, and the programs in it that no command has run."""

    def __init__(self, root, path, folder):
        self.folder = os.path.join(folder, path.replace("/", "_"))
        shutil.copytree(os.path.join(root, manifest.PROGRAMS), self.folder,
                        ignore=shutil.ignore_patterns("*.md", "*.bazel"))
        self.unused = {}

    def write(self, snippet):
        """Whether it is a program of the page, which is then in the folder."""
        named = _NAMED.match(snippet.text)
        if not named:
            return False
        with open(os.path.join(self.folder, named[1]), "w",
                  encoding="utf-8") as file:
            file.write(snippet.text)
        self.unused[named[1]] = snippet
        return True

    def commands(self, snippet):
        """(line, what is wrong or "") for each command of a block."""
        for line, shown in transcript(snippet.text):
            for name in list(self.unused):
                if name.removesuffix(".py") in line:
                    del self.unused[name]
            code, out = self._run(line)
            allowed = (0, 1) if _FAILS.search(shown) else (0,)
            wrong = "" if code in allowed else f"exit code {code}"
            wrong = wrong or missing(shown, out)
            yield (dataclasses.replace(snippet, text="$ " + line),
                   f"{wrong}:\n{out}" if wrong else "")

    def _run(self, line):
        words = shlex.split(line, comments=True)
        env = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
        while re.match(r"[A-Z_]+=", words[0]):
            name, _, value = words.pop(0).partition("=")
            env[name] = value
        if words[0] == "mkdir":
            os.mkdir(os.path.join(self.folder, words[1]))
            return 0, ""
        found = list(_PROGRAMS[words[0]])
        for word in words[1:]:  # as a shell has it
            found += sorted(glob.glob(word, root_dir=self.folder)
                            if "*" in word else []) or [word]
        # The plug-in of pytest comes before the import of torch.
        done = programs.run(*found, cwd=self.folder, env=env, merged=True,
                            fresh=words[0] == "pytest", timeout=SECONDS)
        return done.returncode, done.stdout.replace(
            os.path.realpath(self.folder) + "/", "")


def transcript(text):
    """[(command, what it prints)] of a block."""
    parts = re.split(r"^\$ ((?:.*\\\n)*.*)\n?", text, flags=re.M)
    return [(re.sub(r"\\\n\s*", "", line), shown)
            for line, shown in zip(parts[1::2], parts[2::2], strict=True)]


def plain(line):
    """A line without the values of its numbers, units and widths."""
    line = re.sub(r"[▏▎▍▌▋▊▉█]+", "", line)
    line = re.sub(r"\d[\d.,]*(?:e[+-]\d+)?(?: (?:B|[KMGT]iB|[nmµu]?s)\b)?", "#",
                  line)
    return " ".join(line.split())


def missing(shown, printed):
    """What `printed` lacks of `shown`, or has besides; "" if nothing.

    Lines that stand together on the page stand together in the output. The
    page's first and last lines are the output's, unless an ellipsis is there.
    """
    found = [plain(line) for line in printed.splitlines() if line.strip()]
    at, parts = 0, _parts(shown)
    for index, part in enumerate(parts):
        first, last = at, len(found) - len(part)
        if index == 0:
            last = min(last, at)
        elif part and index == len(parts) - 1:
            first = max(last, at)
        place = next((one for one in range(first, last + 1)
                      if all(map(_alike, part, found[one:]))), None)
        if place is None:
            return f"not printed together: {' / '.join(part)}"
        at = place + len(part)
    rest = found[at:] if shown.strip() and parts[-1] else []
    return f"not on the page: {rest[0]}" if rest else ""


def _parts(shown):
    """The page's lines between its ellipses."""
    parts = [[]]
    for line in filter(None, map(plain, shown.splitlines())):
        if line == _ELLIPSIS:
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def _alike(shown, printed):
    return re.fullmatch(".*".join(map(re.escape, shown.split(_ELLIPSIS))),
                        printed)
