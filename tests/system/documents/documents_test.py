# SPDX-License-Identifier: Apache-2.0
"""The manifest of the documents is consistent, and the runner does with a
document made here what it says: nothing that is wrong passes."""

import dataclasses
import json

import pytest

from tests.system.documents import __main__ as command
from tests.system.documents import extract
from tests.system.documents import manifest
from tests.system.documents.block import Block
from tests.system.documents.block import Document
from tests.system.documents.block import Group

_TEXT = """# A made-up page

```python
import torch
kept = torch.ones(size, device="cuda")
```

```python
kept += 1
print("kept", int(kept.sum()))
```

```bash
pip install nothing>=1
```

```python
import torch
raise ValueError("as printed")
```

```python
seen = torch.cuda.device_count(...)
```

```python
import os
os._exit(7)
```

```python
print("never run")
```
"""
_LINES = _TEXT.split("\n")


def _block(first, last, **more):
    return Block(lines=(first, last),
                 sha256=extract.digest(_LINES[first - 1:last]), **more)


_FIRST = _block(4, 5, prelude="size = 1000", epilogue="""
import stratalloc
assert stratalloc.is_enabled()
assert stratalloc.stats()["allocated"]["current"] == 4096
""")
_SECOND = _block(9, 10, epilogue="assert printed == 'kept 2000\\n'")
_SHELL = _block(14, 14, kind="shell", made_of="quoted")
_RAISES = _block(18, 19, epilogue="pass")
_ELLIPSIS = _block(23, 23, replaced=(("(...)", "()"),), made_of="no call",
                   epilogue="assert seen == 2", group="two", prelude="""
import torch
torch.ones(1, device="cuda")""")
_ENDS = _block(27, 28, epilogue="pass")
_NEVER = _block(32, 32, epilogue="pass")

_DOCUMENT = Document(
    name="page", file="page.md", title="A made-up page",
    groups={"": Group("64MiB"), "two": Group("16MiB", devices=2)},
    blocks=(_FIRST, _SECOND, _SHELL, _RAISES, _ELLIPSIS, _ENDS, _NEVER))


def _run(tmp_path, document, *arguments, text=_TEXT):
    """(exit code, id -> row)"""
    (tmp_path / "page.md").write_text(text)
    out = tmp_path / "rows.json"
    code = command.main([str(tmp_path), "--json", str(out), *arguments],
                        (document,))
    return code, {row["id"]: row for row in json.loads(out.read_text())}


@pytest.fixture(name="told", scope="module")
def _told(tmp_path_factory):
    return _run(tmp_path_factory.mktemp("page"), _DOCUMENT)


def test_each_block_has_its_result(told):
    code, rows = told
    assert code == 1
    assert {name: row["result"] for name, row in rows.items()} == {
        "page:4": "passed", "page:9": "passed", "page:14": "listed",
        "page:18": "failed", "page:23": "passed", "page:27": "failed",
        "page:32": "not run"}, rows
    assert rows["page:4"]["seconds"] >= 0
    assert rows["page:23"]["made_of"] == "no call"


def test_what_went_wrong_is_told_with_the_documents_lines(told):
    _, rows = told
    assert 'File "<page>", line 19' in rows["page:18"]["error"]
    assert "ValueError: as printed" in rows["page:18"]["error"]
    assert "exit code 7" in rows["page:27"]["error"]


def test_a_false_epilogue_fails_and_only_asked_blocks_run(tmp_path, capsys):
    wrong = dataclasses.replace(
        _DOCUMENT, blocks=(_FIRST, dataclasses.replace(
            _SECOND, epilogue="assert printed == 'kept 2001\\n'")))
    code, rows = _run(tmp_path, wrong, "--only", "page:9")
    assert code == 1 and set(rows) == {"page:4", "page:9"}
    assert rows["page:4"]["result"] == "passed"
    assert rows["page:9"]["result"] == "failed"
    assert "page      9–10   run   failed" in capsys.readouterr().out


def test_a_document_that_is_another_is_not_run(tmp_path):
    one = dataclasses.replace(_DOCUMENT, blocks=(_SHELL,))
    changed = _TEXT.replace("nothing>=1", "nothing>=2")
    code, rows = _run(tmp_path, one, text=changed)
    assert code == 1 and rows["page:14"]["result"] == "differs"
    assert "sha256" in rows["page:14"]["error"]
    (tmp_path / "page.md").unlink()
    code = command.main([str(tmp_path)], (one,))
    assert code == 1


def test_a_block_that_the_manifest_has_not_is_told(tmp_path):
    one = dataclasses.replace(_DOCUMENT, blocks=(_SHELL,))
    code, rows = _run(tmp_path, one)
    assert code == 1
    assert [row["result"] for row in rows.values()].count("unlisted") == 6
    rst = ["Text", "", "  .. code-block:: python", "", "     x = 1", "",
           "     y = 2", "", "  more text"]
    assert list(extract.marked(rst, "rst")) == [(5, 7)]
    assert extract.program(
        Block((5, 7), extract.digest(rst[4:7])), rst) == "x = 1\n\ny = 2\n"


def test_an_unknown_id_is_a_mistake(tmp_path):
    with pytest.raises(SystemExit) as ended:
        command.main([str(tmp_path), "--only", "page:5"], (_DOCUMENT,))
    assert ended.value.code == 2


def test_the_manifest_is_consistent():
    assert list(manifest.problems()) == []
    assert len({document.name for document in manifest.DOCUMENTS}) == 5


@pytest.mark.parametrize("changed, said", (
    ({"lines": (9, 8)}, "come after"), ({"lines": (5, 6)}, "come after"),
    ({"kind": "prose"}, "no kind"), ({"group": "none"}, "no group"),
    ({"epilogue": ""}, "nothing is asserted"),
    ({"prelude": "x = ="}, "invalid syntax"),
    ({"replaced": (("a", "b"),)}, "what was made of it"),
))
def test_what_is_wrong_in_a_manifest_is_told(changed, said):
    document = dataclasses.replace(_DOCUMENT, blocks=(
        _FIRST, dataclasses.replace(_SECOND, **changed)))
    found = list(manifest.problems((document,)))
    assert any(said in sentence for sentence in found), found
