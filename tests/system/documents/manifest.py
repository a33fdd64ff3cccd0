# SPDX-License-Identifier: Apache-2.0
"""All documents, and what has to hold of their entries."""

from tests.system.documents import block as block_module
from tests.system.documents import large_models
from tests.system.documents import memlord
from tests.system.documents import memory_guide
from tests.system.documents import memory_management
from tests.system.documents import memory_tracer

DOCUMENTS = (
    memory_management.DOCUMENT,
    memory_guide.DOCUMENT,
    large_models.DOCUMENT,
    memory_tracer.DOCUMENT,
    memlord.DOCUMENT,
)


def problems(documents=DOCUMENTS):
    """Sentences on what is wrong in the manifest itself."""
    for document in documents:
        before = 0
        for block in document.blocks:
            where = document.id_of(block)
            first, last = block.lines
            if not before < first <= last:
                yield f"{where}: lines {first} to {last} come after {before}"
            before = last
            if block.kind not in block_module.KINDS:
                yield f"{where}: there is no kind {block.kind!r}"
            if block.group not in document.groups:
                yield f"{where}: there is no group {block.group!r}"
            if (block.replaced or block.kind != "run") and not block.made_of:
                yield f"{where}: what was made of it is not said"
            if block.kind == "run" and not block.epilogue:
                yield f"{where}: nothing is asserted of it"
            yield from _programs(where, block)
        yield from _uncompiled(document.name, document.prelude)


def _programs(where, block):
    yield from _uncompiled(where + " prelude", block.prelude)
    yield from _uncompiled(where + " epilogue", block.epilogue)


def _uncompiled(where, text):
    try:
        compile(text, where, "exec")
    except SyntaxError as error:
        yield f"{where}: {error}"
