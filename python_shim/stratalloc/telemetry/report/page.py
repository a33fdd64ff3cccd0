# SPDX-License-Identifier: Apache-2.0
"""page(): the report as one file that asks nobody for anything.

What the page shows is JSON in it (packed.py), which its scripts put there as
text. The
policy in its head lets these scripts and this style run, by their hashes, and
nothing else: no address is asked, and no name can become code.
"""

import base64
import hashlib
import os
import string

from stratalloc._rendering import plot_svg as _plot_svg
from stratalloc.telemetry import model
from stratalloc.telemetry.exports.target import target
from stratalloc.telemetry.report.packed import packed

_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__)))), "data", "report")
# In the order in which they use each other.
_SCRIPTS = ("dom", "format", "table", "head", "timeline", "flame", "tiers",
            "addresses", "layers", "moves", "growth", "ranks", "main")


def page(told):
    """The file's text, of what data.data() told."""
    script = '"use strict";\n(() => {\n' + "\n".join(
        _text("browser", f"{name}.js") for name in _SCRIPTS) + "})();\n"
    style = _categories() + _text("page.css")
    return string.Template(_text("page.html")).substitute(
        policy=f"default-src 'none'; script-src {_hash(script)}; style-src "
        f"{_hash(style)}; img-src data:; base-uri 'none'; form-action 'none'",
        style=style, script=script, data=packed(told))


def write(told, path):
    """Writes the page; 0600, whole or not there.

    Raises:
      OSError: it cannot be written.
    """
    made = page(told).encode()
    with target(path) as file:
        file.write(made)


def _categories():
    """Their colours, which notebooks have, too: seen in either theme."""
    said = "".join(f"--c-{category}:{colour};" for category, colour
                   in _plot_svg.colours_of(model.CATEGORIES).items())
    return f":root{{{said}--c-ink:{_plot_svg.INK};}}\n"


def _text(*parts):
    with open(os.path.join(_FOLDER, *parts), encoding="utf-8") as file:
        return file.read()


def _hash(text):
    """A source of a Content-Security-Policy."""
    made = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{made}'"
