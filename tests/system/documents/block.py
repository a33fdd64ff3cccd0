# SPDX-License-Identifier: Apache-2.0
"""A document that our users have, and its blocks of code: where they are, not
what they say. The text itself is not ours and stays outside of the repository.
"""

import dataclasses

# Of kind "run" is what a program runs. The rest is listed, and what can be
# checked of it has an epilogue: a signature's defaults, the shape of a result.
KINDS = ("run", "signature", "shape", "shell", "formula", "output")


@dataclasses.dataclass(frozen=True)
class Block:
    """One block of code.

    Attributes:
      lines: first and last, as an editor counts; fences are not in it.
      sha256: of those lines, each with its line feed: the first 16 digits.
      kind: one of KINDS.
      prelude: a program that declares what the block leaves open.
      epilogue: a program that calls what the block only defines and asserts
        what its text says; `printed` is what the block has printed.
      replaced: pairs of what is printed and what it is run as.
      made_of: why a block is not run as printed, for people.
      fresh: True begins with empty names; else those of the blocks before it
        in its group are there, as a reader of the page has them.
      group: blocks of one document and one group share a process.
    """

    lines: tuple[int, int]
    sha256: str
    kind: str = "run"
    prelude: str = ""
    epilogue: str = ""
    replaced: tuple[tuple[str, str], ...] = ()
    made_of: str = ""
    fresh: bool = False
    group: str = ""

    @property
    def is_run(self):
        """True if there is something of it to run."""
        return self.kind == "run" or bool(self.epilogue)


@dataclasses.dataclass(frozen=True)
class Group:
    """A process that runs blocks: the simulated cards it has, and how the
    allocator gets in: by STRATALLOC=1, or by the module that is imported."""

    card: str = "256MiB"
    devices: int = 1
    conf: str = ""
    enabled_by: str = "environment"  # or "import"


@dataclasses.dataclass(frozen=True)
class Document:
    """One document. `prelude` runs at the start of each of its groups."""

    name: str
    file: str
    title: str
    blocks: tuple[Block, ...]
    prelude: str = ""
    groups: dict[str, Group] = dataclasses.field(
        default_factory=lambda: {"": Group()})
    # Blocks of it stand between fences, or by indentation, or as bare lines.
    format: str = "markdown"

    def id_of(self, block):
        """What --only takes."""
        return f"{self.name}:{block.lines[0]}"
