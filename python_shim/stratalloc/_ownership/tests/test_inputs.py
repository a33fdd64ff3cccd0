# SPDX-License-Identifier: Apache-2.0
"""What a model is called with is its input, however it is packed."""

import collections
import dataclasses
import types

import pytest

from stratalloc import simulate

simulate.load("64MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.accounts import rows, sums  # noqa: E402,F401
from python_shim.testing.enabled import enabled  # noqa: E402,F401
from stratalloc._ownership import inputs as _inputs  # noqa: E402

SIZE = 128
INPUT = SIZE * 4


class Takes(nn.Module):
    def forward(self, *args, **kwargs):
        return None


class Frozen(collections.abc.Mapping):
    """Nobody may read it but the program."""

    def __init__(self, **values):
        self._values = values

    def __getitem__(self, name):
        raise AssertionError("read")

    def __iter__(self):
        raise AssertionError("read")

    def __len__(self):
        raise AssertionError("read")


@dataclasses.dataclass
class Batch:
    number: int
    x: torch.Tensor


@dataclasses.dataclass(slots=True)
class Slotted:
    number: int
    x: torch.Tensor


Pair = collections.namedtuple("Pair", "number x")

PACKED = {
    "itself": lambda x: x,
    "a list": lambda x: [3, x],
    "a named tuple": lambda x: Pair(3, x),
    "a dict in a dict": lambda x: {"a": {"b": x}},
    "a UserDict": lambda x: collections.UserDict(x=x),
    "a mapping": lambda x: Frozen(x=x),
    "a dataclass": lambda x: Batch(3, x),
    "one with slots": lambda x: Slotted(3, x),
    "behind numbers": lambda x: {"ids": list(range(10**4)), "x": x},
}


@pytest.mark.parametrize("way", PACKED)
@pytest.mark.parametrize("named", [False, True])
def test_it_is_the_models_input(way, named):
    name = f"Takes{list(PACKED).index(way)}{named}"
    model = type(name, (Takes,), {})()
    x = torch.zeros(SIZE, device="cuda")
    packed = PACKED[way](x)
    model(batch=packed) if named else model(packed)
    assert rows(name) == {("", "input"): INPUT}


class Counting(list):
    """How many of its elements were looked at."""

    def __iter__(self):
        self.looks = 0
        for value in super().__iter__():
            self.looks += 1
            yield value


@pytest.mark.parametrize("element", [7, "text", (), [1, 2], [[1] * 99] * 99,
                                     types.SimpleNamespace()],
                         ids=["numbers", "texts", "nothing", "pairs", "lists",
                              "objects"])
def test_a_look_at_what_has_no_tensors_ends(element):
    values, x = Counting([element] * 10**5), torch.ones(1)
    seen = []
    _inputs.each_tensor((values, x), seen.append)
    assert values.looks <= 1024
    assert [id(one) for one in seen] == [id(x)], "what is beside it is seen"


def test_all_tensors_of_a_long_list_are_seen():
    values = [[torch.ones(1), 3] for _ in range(5000)]
    seen = []
    _inputs.each_tensor((values,), seen.append)
    assert len(seen) == 5000
