# SPDX-License-Identifier: Apache-2.0
"""fragmentation(): what a device has reserved and nobody has, and why."""

import dataclasses
import html
from collections.abc import Mapping

from stratalloc import _core
from stratalloc import _tiers
from stratalloc.settings import format_size

_SHOWN = 10  # holes, for people


@dataclasses.dataclass(frozen=True)
class Hole:
    """Free bytes in a handle that something alive keeps.

    Attributes:
      address: int, of the handle. bytes: int, of the handle.
      free: int, bytes that cannot leave while `blocks` blocks live in it.
      blocks: int.
      owner, category: of the oldest of these blocks; block_bytes: its size.
      age: operators that the device ran since it was handed out; None where
        tiering is off, and nobody counts them.
      lifetime: the class of the handle: unknown, persistent, gradient,
        optimizer or transient.
    """

    address: int
    bytes: int
    free: int
    blocks: int
    owner: str
    category: str
    block_bytes: int
    age: int | None
    lifetime: str


class Fragmentation(Mapping):
    """Bytes of one device; also a mapping with the keys of to_dict().

    allocated + pending + stranded + releasable + in_private_pools = reserved.

    Attributes, in bytes:
      reserved, allocated: as torch has them.
      rounding: of the allocated, what nobody asked for.
      pending: freed, and other streams still use it.
      stranded: free, in handles that something alive keeps; see holes.
      separated: of the stranded, what it costs that lifetime classes have
        handles of their own.
      releasable: handles that are free as a whole: any request may have them,
        and torch.cuda.empty_cache() gives them back.
      in_private_pools: the same, but of CUDA graphs' and MemPools' pools.
      holes: list of Hole, the most free bytes first.
    """

    _BYTES = ("reserved", "allocated", "rounding", "pending", "stranded",
              "separated", "releasable", "in_private_pools")

    def __init__(self, device, sizes, holes):
        self.device = device
        for name in self._BYTES:
            setattr(self, name, sizes.get(name, 0))
        self.holes = holes

    def to_dict(self):
        """{"device", the attributes, "holes": [{...}]}."""
        return {"device": self.device,
                **{name: getattr(self, name) for name in self._BYTES},
                "holes": [dataclasses.asdict(hole) for hole in self.holes]}

    def to_pandas(self):
        """A DataFrame with a line for each hole."""
        import pandas

        return pandas.DataFrame(
            [dataclasses.asdict(hole) for hole in self.holes],
            columns=[field.name for field in dataclasses.fields(Hole)])

    def text(self, all=False):  # noqa: A002 - as the option reads
        """For people: the sum, then the largest holes, all of them if `all`."""
        lines = [f"{format_size(self.reserved)} reserved on device "
                 f"{self.device}:"]
        lines += [f"  {format_size(size):>11}  {what}" for size, what in (
            (self.allocated, "allocated, of it "
             f"{format_size(self.rounding)} rounding"),
            (self.pending, "freed, and other streams still use it"),
            (self.stranded, "free in handles that something keeps, of it "
             f"{format_size(self.separated)} because lifetime classes are "
             "kept apart"),
            (self.releasable, "free for every request"),
            (self.in_private_pools, "free in private pools"))]
        shown = self.holes if all else self.holes[:_SHOWN]
        lines += [_hole_line(hole) for hole in shown]
        if len(shown) < len(self.holes):
            rest = sum(hole.free for hole in self.holes[len(shown):])
            lines.append(f"and {len(self.holes) - len(shown)} smaller holes, "
                         f"{format_size(rest)}; text(all=True) has them")
        return "\n".join(lines)

    def __str__(self):
        return self.text()

    def __rich__(self):
        from rich.text import Text

        return Text(self.text(), no_wrap=True)

    def _repr_html_(self):
        return f"<pre>{html.escape(self.text(all=True))}</pre>"

    def __repr__(self):
        return (f"<stratalloc.Fragmentation of device {self.device}: "
                f"{self.stranded} of {self.reserved} bytes stranded in "
                f"{len(self.holes)} holes>")

    def __getitem__(self, key):
        return self.to_dict()[key]

    def __iter__(self):
        return iter(("device", *self._BYTES, "holes"))

    def __len__(self):
        return len(self._BYTES) + 2


def _hole_line(hole):
    age = "" if hole.age is None else f", age {hole.age} operators"
    others = f" and {hole.blocks - 1} more" if hole.blocks > 1 else ""
    return (f"hole of {format_size(hole.free)} in {format_size(hole.bytes)}: "
            f"{format_size(hole.block_bytes)} of {hole.owner} "
            f"({hole.category}{age}){others}")


def fragmentation(device=None):
    """What the device has reserved beside what is allocated, exactly, and why.

    Looks at every block.

    Args:
      device: as torch takes it; None: the current one.

    Returns: Fragmentation, in bytes; zeros before the device is used.

    Raises:
      RuntimeError: the device does not exist.
    """
    if not _core.initialized():
        return Fragmentation(0, {}, [])
    index = _tiers.device_index(device)
    values = _core.fragmentation(index)
    counted = _core.anything_evictable()
    holes = [Hole(address=hole["address"], bytes=hole["bytes"],
                  free=hole["free"], blocks=hole["blocks"],
                  owner=hole["oldest"]["owner"],
                  category=hole["oldest"]["category"],
                  block_bytes=hole["oldest"]["bytes"],
                  age=hole["age"] if counted else None,
                  lifetime=hole["lifetime"])
             for hole in values.pop("holes", [])]
    return Fragmentation(index, values, holes)
