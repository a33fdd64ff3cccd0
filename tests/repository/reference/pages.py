# SPDX-License-Identifier: Apache-2.0
"""Pages of the API reference, made by pdoc from docstrings and signatures.

    python -m tests.repository.reference.pages DIRECTORY

The built package is first on PYTHONPATH. The directory is replaced. Problems
(problems.py) are printed, one a line; the exit code is 1 if there is one.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pathlib
import shutil
import sys
import types
import warnings

import pdoc
import pdoc.doc
import pdoc.render

from tests.repository.reference import problems

_COMMANDS = "stratalloc.commands"  # a page, and no module
# pdoc hides a default that equals the value of any environment variable. Ours
# are written in the source, and Bazel's TEST_WORKSPACE is "stratalloc".
os.environ["PDOC_DISPLAY_ENV_VARS"] = "1"


def modules() -> dict[str, pdoc.doc.Module]:
    """Full name -> what pdoc knows of a page: the package, the modules that it
    names as public, and the command line."""
    import stratalloc

    _stand_in_for_pandas()
    for name in stratalloc.__all__:  # pdoc sees what is loaded
        _show_own_methods(getattr(stratalloc, name))
    public = [f"stratalloc.{name}" for name in stratalloc._MODULES]
    found = [stratalloc, *map(importlib.import_module, public), _commands()]
    pages = {one.__name__: pdoc.doc.Module(one) for one in found}
    for page in pages.values():
        _show_inherited(page)
    first, *others = pages.values()
    first.docstring += "\n\nOther pages: " + ", ".join(
        f"`{page.fullname}`" for page in others) + "."
    return pages


def _show_own_methods(value: object) -> None:
    """pdoc takes a method from the bases in __orig_bases__, where a class has or
    inherits that of a generic base, although the class has its own."""
    if isinstance(value, type) and hasattr(value, "__orig_bases__"):
        setattr(value, "__orig_bases__", ())


def _show_inherited(page: pdoc.doc.Module) -> None:
    """What a class inherits from one of ours that is not public is its own."""
    for cls in page.classes:
        for one in cls.members.values():
            if one.taken_from[0].startswith("stratalloc."):
                one.taken_from = (one.modulename, one.qualname)


def write(directory: pathlib.Path,
          pages: dict[str, pdoc.doc.Module]) -> list[str]:
    """Replaces the directory by one page per module, an index and a search;
    returns what pdoc warns of."""
    pdoc.render.configure(docformat="google", show_source=False,
                          footer_text=f"stratalloc {_version()}")
    shutil.rmtree(directory, ignore_errors=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name, page in pages.items():
            file = directory / f"{name.replace('.', '/')}.html"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(pdoc.render.html_module(page, pages),
                            encoding="utf-8")
        (directory / "index.html").write_text(
            pdoc.render.html_index(pages), encoding="utf-8")
        (directory / "search.js").write_text(
            pdoc.render.search_index(pages), encoding="utf-8")
    return [str(one.message) for one in caught]


def _stand_in_for_pandas() -> None:
    """Annotations name pandas.DataFrame, and .venv has no pandas."""
    if "pandas" not in sys.modules:
        pandas = types.ModuleType("pandas")
        frame = type("DataFrame", (), {"__module__": "pandas"})
        setattr(pandas, "DataFrame", frame)
        sys.modules["pandas"] = pandas


def _version() -> str:
    import stratalloc

    return stratalloc.__version__


def _commands() -> types.ModuleType:
    """The help of each verb, as the docstring of a module."""
    from stratalloc.cli import command_line

    page = types.ModuleType(_COMMANDS)
    parts = ["The command `stratalloc`, which is `python -m stratalloc`."]
    verbs = problems.verbs()
    for verb in ("", *verbs):
        output = io.StringIO()
        with contextlib.redirect_stdout(output), _columns(80):
            try:
                code = command_line.main([*verb.split(), "--help"])
            except SystemExit as end:
                code = end.code
        if code:
            raise RuntimeError(f"stratalloc {verb} --help ended with {code}")
        title = f"stratalloc {verb}".strip()
        parts.append(f"## {title}\n\n```text\n{output.getvalue()}```")
    page.__doc__ = "\n\n".join(parts)
    page.__all__ = []  # type: ignore[attr-defined]
    return page


@contextlib.contextmanager
def _columns(count: int):
    """Help is as wide as this, whatever the terminal is."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(count)
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


def main(arguments: list[str]) -> int:
    directory = pathlib.Path(arguments[0])
    pages = modules()
    warned = write(directory, pages)
    found = [*warned, *problems.of_modules(pages), *problems.of_pages(directory)]
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print(directory / "index.html")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
