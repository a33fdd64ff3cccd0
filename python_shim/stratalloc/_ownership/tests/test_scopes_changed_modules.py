# SPDX-License-Identifier: Apache-2.0
"""Modules that change while they are walked, and modules that hinder the walk:
every byte has an owner still."""

import gc
import threading

import pytest

from stratalloc import simulate

simulate.load("64MiB", devices=2)

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.accounts import rows, sums  # noqa: E402,F401
from device_nets import SIZE, WEIGHT, data, net, ones  # noqa: E402
from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402
from stratalloc._ownership import modules as _modules  # noqa: E402


ASKED = {
    "report": stratalloc.report,
    "holders": lambda: stratalloc.holders(by="tensor"),
    "memory_summary": stratalloc.memory_summary,
}


@pytest.mark.parametrize("ask", ASKED)
def test_a_module_that_grows_and_shrinks_while_asked(ask):
    name = f"Changing_{ask}"
    model = net(name, layers=3)
    done = threading.Event()
    raised, answers = [], [0]

    def asking():
        try:
            while not done.is_set() or not answers[0]:
                ASKED[ask]()
                stratalloc.watch(model)
                answers[0] += 1
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)

    thread = threading.Thread(target=asking)
    thread.start()
    try:
        for number in range(60):
            model.add_module(f"more{number}", nn.Linear(8, 8, device="cuda"))
            model[0].register_parameter(
                f"p{number}", nn.Parameter(ones(1)))
            model[1].register_buffer(f"b{number}", ones(1))
            model[2](data())
            if number % 2:
                for gone in (number - 1, number):
                    delattr(model, f"more{gone}")
                    delattr(model[0], f"p{gone}")
                    delattr(model[1], f"b{gone}")
    finally:
        done.set()
        thread.join()
    assert not raised, raised
    gc.collect()
    assert rows(name) == {(str(i), "parameter"): WEIGHT for i in range(3)}


class Vanishing(dict):
    """Loses what it was asked for, as if another thread had been faster."""

    def __contains__(self, name):
        found = super().__contains__(name)
        self.pop(name, None)
        return found


def test_a_parameter_that_goes_between_two_looks():
    model = net("Vanishing")
    owner = _modules.names()["Vanishing.0"]
    model[0].__dict__["_parameters"] = Vanishing(model[0]._parameters)
    weight = dict(model[0]._parameters)["weight"]
    assert _modules.owner(weight) in (owner, None)
    stratalloc.holders(by="tensor")
    del weight
    assert ("1", "parameter") in rows("Vanishing")


class Hostile(nn.Module):
    """Answers nobody who asks for what it is made of."""

    hostile = False

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE, bias=False)

    def forward(self, x):
        return self.linear(x)

    def __getattribute__(self, name):
        if type(self).hostile and name in ("_parameters", "_buffers",
                                           "_modules", "named_children",
                                           "named_modules", "children"):
            raise ValueError("do not look at me")
        return super().__getattribute__(name)

    def __getattr__(self, name):
        if type(self).hostile:
            raise RuntimeError("nor for what is not there")
        return super().__getattr__(name)


def test_a_module_that_raises_when_it_is_looked_at():
    model = net("Around2", layers=1)
    model.add_module("hostile", Hostile())
    model.to("cuda")
    loss = model(data()).sum()
    Hostile.hostile = True
    try:
        loss.backward()
        for ask in ASKED.values():
            ask()
        stratalloc.watch(model)
        found = rows("Around2")
        model[0].add_module("late", nn.Linear(SIZE, SIZE, bias=False,
                                              device="cuda"))
        stratalloc.watch(model)
    finally:
        Hostile.hostile = False
    # Its own tensors were charged before; its gradient where it was computed.
    assert found["hostile.linear", "parameter"] == WEIGHT
    assert found["hostile.linear", "gradient"] == WEIGHT
    assert found["0", "gradient"] == WEIGHT
    assert rows("Around2")["0.late", "parameter"] == WEIGHT


def test_a_module_without_an_init_is_walked():
    class Half(nn.Module):
        def __init__(self):
            self.__dict__["here"] = 1  # and not nn.Module's

    model = net("Halved", layers=1)
    model._modules["half"] = Half.__new__(Half)
    stratalloc.watch(model)
    stratalloc.report()
    assert rows("Halved")["0", "parameter"] == WEIGHT


def test_a_module_that_is_deleted_during_the_walk():
    """The last reference to a child goes while its tree is named."""
    model = net("Deleted", layers=3)
    owners = _modules._installed.owners
    label = owners._label_own
    gone = []

    def labelling(module):
        if not gone and module is model._modules.get("1"):
            gone.append(model._modules.pop("2"))
            gone[:] = [1]  # the walk alone has it now
        label(module)

    owners._label_own = labelling
    try:
        stratalloc.watch(model)
    finally:
        owners._label_own = label
    gc.collect()
    assert gone and rows("Deleted") == {(str(i), "parameter"): WEIGHT
                                        for i in range(2)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit's
def test_a_script_module_is_asked_too():
    model = torch.jit.script(nn.Linear(SIZE, SIZE, bias=False)).to("cuda")
    model(data()).sum().backward()
    names = {row.name for row in stratalloc.holders(by="tensor").rows}
    assert "Linear.weight" in names
    del model


def test_a_module_that_has_no_length_is_asked_too():
    model = torch.compile(net("Lengthless")[0], backend="eager")
    with pytest.raises(TypeError, match="does not support len"):
        bool(model)
    stratalloc.watch(model)
    stratalloc.holders(by="tensor")
    del model
