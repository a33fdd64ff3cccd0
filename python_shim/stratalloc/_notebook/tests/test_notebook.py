# SPDX-License-Identifier: Apache-2.0
"""The example notebooks, each run by a kernel of its own on the simulated
device: every cell's output is looked at as a notebook has it."""

import os
import re
import sys
import xml.etree.ElementTree

import jupyter_client
import nbclient
import nbformat
import pytest

from stratalloc import simulate

simulate.load("64MiB")

_EXAMPLES = "python_shim/examples/notebook/"


@pytest.fixture(scope="module", name="cells")
def _cells(tmp_path_factory):
    return _ran("memory.ipynb", tmp_path_factory)


@pytest.fixture(scope="module", name="compat")
def _compat(tmp_path_factory):
    return _ran("compat.ipynb", tmp_path_factory)


def _ran(name, tmp_path_factory):
    """source -> outputs, of the notebook as it ran."""
    notebook = nbformat.read(_EXAMPLES + name, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:  # as it is kept
        assert not cell.get("outputs") and not cell.get("execution_count")
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        os.environ[name] = str(tmp_path_factory.mktemp("jupyter"))
    os.environ["OMP_NUM_THREADS"] = "1"  # or sums are in another order
    simulate.for_children()  # a kernel is one
    manager = jupyter_client.AsyncKernelManager()
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher",
                                "-f", "{connection_file}"]
    nbclient.NotebookClient(notebook, km=manager, timeout=300).execute()
    return {cell.source: cell.outputs for cell in notebook.cells
            if cell.cell_type == "code"}


def _shown(cells, part):
    """(HTML, text) of what the cell with `part` shows, and its value."""
    (outputs,) = [found for source, found in cells.items() if part in source]
    shown = [one.data for one in outputs if "text/html" in one.get("data", {})]
    value = [one.data["text/plain"] for one in outputs
             if one.output_type == "execute_result"]
    return ([(data["text/html"], data["text/plain"]) for data in shown],
            value[0] if value else None)


def test_every_cell_shows_what_it_did(cells):
    (page,), value = _shown(cells, "model = nn.Sequential")
    assert value is None
    assert re.search(r"kept.*\+4.01 MiB", page[1], re.DOTALL)
    assert "parameter +4.01 MiB" in page[0] and "<svg" in page[0]
    (page,), value = _shown(cells, "-o step")
    assert value == "True"
    assert "at its peak" in page[0] and "over time" in page[0]
    for part in ("holders()", "fragmentation()", "as trace"):
        (page,), value = _shown(cells, part)
        assert value == page[1] and "<svg" in page[0], part


def test_peaks_are_torchs(cells):
    assert _shown(cells, "max_memory_allocated") == ([], "True")


def test_pictures_are_xml(cells):
    pictures = [picture for outputs in cells.values() for one in outputs
                for picture in re.findall(
                    "<svg.*?</svg>", one.get("data", {}).get("text/html", ""))]
    assert len(pictures) == 6
    for picture in pictures:
        root = xml.etree.ElementTree.fromstring(picture)
        assert root.find("{*}title").text and root.find("{*}desc").text


def test_a_refusal_is_told_before_its_traceback(cells):
    (outputs,) = [found for source, found in cells.items()
                  if "1 << 50" in source]
    assert [one.output_type for one in outputs] == ["display_data", "error"]
    assert outputs[1].ename == "OutOfMemoryError"
    assert "1 request was refused" in outputs[0].data["text/html"]


def test_nothing_else_is_printed(cells):
    assert [one for outputs in cells.values() for one in outputs
            if one.output_type == "stream"] == []


def test_three_apis_and_the_allocator_say_the_same(compat):
    for part, value in (("is_enabled()", "True"),
                        ("nbytes", "90852864"),
                        ("MemLord(", "(0, '0 B')"),
                        ("auto_manage_model(model)", "(37, True)"),
                        (">= weights", "True"),
                        ("from the CPU's", "0.0"),
                        ("owned.get", "'embeddings.word_embeddings'"),
                        ("max_memory_allocated", "True"),
                        ("cleanup()", "(False, 'BertModel')")):
        assert _shown(compat, part) == ([], value), part
    for part in ("holders(", "by whom"):
        (page,), value = _shown(compat, part)
        assert value == page[1] and "parameter" in page[1], part
    (summary,) = [one for outputs in compat.values() for one in outputs
                  if one.output_type == "stream"]
    assert summary.text.startswith("MemoryTracer, cuda:0: ")
