# SPDX-License-Identifier: Apache-2.0
"""Lines of a shell: whether their verbs, options and labels are there."""

import importlib.util
import os
import re
import shlex

from tests.system.snippets import manifest
from tests.system.snippets.spans import Wrong


def lines(text):
    """Logical lines of a block, without comments; of a transcript those behind
    a prompt."""
    prompted = re.findall(r"^\$ (.*)$", text, re.M)
    if prompted:
        return prompted
    # Continued: by a backslash, or in a synopsis by indentation or a bracket.
    joined = re.sub(r"\\\n\s*|\n(?=[\[ ])", "", text)
    return [line for line in joined.split("\n")
            if line.strip() and not line.strip().startswith("#")]


def begins(text):
    """Whether a block without a language begins with a command."""
    return text.split(maxsplit=1)[0] in ("stratalloc", "./dev", "bazel",
                                         "python", "pip", "pytest")


def words(line):
    """A line's words without comment, variables set before it and what comes
    behind the first of &&, | and >."""
    try:
        found = shlex.split(line, comments=True)
    except ValueError as error:
        raise Wrong(f"no line of a shell: {error}") from None
    while found and re.fullmatch(r"[A-Z_]+=.*", found[0]):
        del found[0]
    for end in ("&&", "|", ">", "--args"):
        if end in found:
            del found[found.index(end):]
    return found


def check(line, root, folder):
    """What was found out about a line: a word for the list; Wrong."""
    found = words(line)
    if not found:
        return "sets variables"
    if found[0] == "stratalloc":
        stratalloc(found[1:])
        return "parsed"
    if found[0] == "./dev":
        return _dev(found[1:], root)
    if found[0] == "bazel":
        return _labels(found[1:], root)
    if found[0].endswith(("python", "python3")):
        return _python(found[1:], root, folder)
    if found[0] == "pytest":
        return _pytest(found[1:], root)
    if found[0] == "pip":
        return _pip(found, root)
    if found[0] in manifest.OTHERS or line.startswith(manifest.OTHERS):
        return "another tool"
    raise Wrong(f"{found[0]} is in no list")


def stratalloc(found):
    """Wrong where the command line does not take these words; a synopsis may
    lack its files."""
    from stratalloc.cli import command_line as cli
    from stratalloc.telemetry import commands

    if found and found[0] in cli._OF_FILES:
        import typer

        command = typer.main.get_command(commands.app).commands[found[0]]
        options = {name for one in command.params for name in one.opts}
        _known(found[1:], options)
        return
    parser, choices = cli._parser()
    if not found:
        return
    if found[0] not in choices:
        if not found[0].startswith("-"):
            raise Wrong(f"stratalloc has no command {found[0]}")
        _known(found, parser._option_string_actions)
        return
    _parse(choices[found[0]], found[1:])


def _parse(parser, found):
    """Options up to the program, whose own are behind it."""
    known, at = parser._option_string_actions, 0
    while at < len(found) and found[at].startswith("-"):
        option, equals, value = found[at].partition("=")
        if option not in known:
            raise Wrong(f"{parser.prog} has no option {option}")
        action = known[option]
        if action.nargs != 0 and not equals:
            at += 1
            value = found[at] if at < len(found) else ""
        if value and not value.isupper() and action.type is not None:
            try:
                action.type(value)
            except Exception as error:
                raise Wrong(f"{option} {value}: {error}") from None
        if value and action.choices and value not in action.choices:
            raise Wrong(f"{option} {value}: one of {action.choices}")
        at += 1


def _known(found, options):
    for one in found:
        name = one.partition("=")[0]
        if name.startswith("-") and len(name) > 1 and name not in options:
            raise Wrong(f"there is no option {name}")


def _read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def _dev(found, root):
    verbs = re.findall(r"^  ([a-z-]+) ", _read(root, "dev"), re.M)
    if found and found[0] not in verbs:
        raise Wrong(f"./dev has no verb {found[0]}")
    return _labels(found[1:], root)


def _labels(found, root):
    from tests.repository.tidy import build_files, tree

    global _targets
    if _targets is None:
        _targets = {(os.path.dirname(one.file), one.name)
                    for one in build_files.calls(tree.Tree(root))}
    for one in found:
        if not one.startswith("//"):
            continue
        package, _, name = one[2:].partition(":")
        if package.rstrip("/").endswith("..."):
            package = package[:-3].rstrip("/")
            if not os.path.isdir(os.path.join(root, package)):
                raise Wrong(f"there is no folder {package}")
        elif name != "all" and (package, name or package.rpartition("/")[2]
                                ) not in _targets:
            raise Wrong(f"there is no target {one}")
    return "looked up"


_targets = None


def _python(found, root, folder):
    if "-m" in found and found.index("-m") < 2:
        name = found[found.index("-m") + 1]
        if importlib.util.find_spec(name.partition(".")[0]) is None and not (
                os.path.exists(os.path.join(root, name.replace(".", "/")))):
            raise Wrong(f"there is no module {name}")
        if name.startswith("tests.") and not any(os.path.exists(os.path.join(
                root, name.replace(".", "/") + end)) for end in (
                    ".py", "/__main__.py")):
            raise Wrong(f"there is no module {name}")
    elif found and found[0].endswith(".py") and found[0] not in ("x.py",
                                                                 "program.py"):
        if not any(os.path.exists(os.path.join(root, place, found[0]))
                   for place in ("", folder)):
            raise Wrong(f"there is no file {found[0]}")
    return "looked up"


def _pytest(found, root):
    plugin = _read(root, "python_shim/stratalloc/pytest_plugin.py")
    for one in found:
        if one.startswith("--stratalloc") and f'"{one}"' not in plugin:
            raise Wrong(f"the plug-in has no option {one}")
    return "looked up"


def _pip(found, root):
    text = _read(root, "python_shim/wheel/build_wheel.py") + _read(
        root, "python_shim/wheel/BUILD.bazel")
    for extras in re.findall(r"stratalloc\[([\w,]+)\]", " ".join(found)):
        for one in extras.split(","):
            if one not in text:
                raise Wrong(f"the wheel has no extra {one}")
    return "looked up"
