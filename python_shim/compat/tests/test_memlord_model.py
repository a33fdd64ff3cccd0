# SPDX-License-Identifier: Apache-2.0
"""Random programs, counted by MemLord and by a slow model of its promises."""

import gc

from stratalloc import simulate

simulate.load("64MiB", devices=2)

# pylint: disable=wrong-import-position
import torch  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from stratalloc.compat.memlord import MemLord  # noqa: E402

gc.freeze()  # what was imported is no garbage
_DEVICES = [torch.device("cpu"), torch.device("cuda", 0),
            torch.device("cuda", 1)]


class _Storage:
    """What the model knows of one: who uses it, and what is charged for it."""

    def __init__(self, device, size):
        self.device, self.size = device, size
        self.users = 0
        self.known = self.charged = self.in_total = self.dies = False


class _Model:

    def __init__(self):
        self.allocated = dict.fromkeys(_DEVICES, 0)
        self.freed = dict.fromkeys(_DEVICES, 0)
        self.storages = []

    def made(self, storage, heard):
        self.storages.append(storage)
        if heard:
            self._charge(storage)
            storage.dies = True

    def allocate(self, storage, dies):
        if not (storage.charged and storage.in_total):
            self._charge(storage)
        storage.dies = storage.dies or dies

    def free(self, storage):
        if not storage.known:
            storage.known = storage.charged = True  # in no total
        self._credit(storage)

    def user_gone(self, storage):
        storage.users -= 1
        if not storage.users:
            if storage.dies:
                self._credit(storage)
            self.storages.remove(storage)

    def reset(self):
        for device in _DEVICES:
            self.allocated[device] = self.freed[device] = 0
        for storage in self.storages:
            storage.in_total = False

    def _charge(self, storage):
        storage.known = storage.charged = storage.in_total = True
        self.allocated[storage.device] += storage.size

    def _credit(self, storage):
        if storage.charged:
            self.freed[storage.device] += storage.size
            if storage.in_total:
                self.allocated[storage.device] -= storage.size
        storage.charged = storage.in_total = False


class _Run:
    """One program: variables of tensors, and the model's storage of each."""

    def __init__(self):
        self.mem, self.model = MemLord({}), _Model()
        self.variables = []  # (tensor, _Storage)
        self.python, self.torch = [], []

    def step(self, verb, one, other):
        if self.variables:
            tensor, storage = self.variables[one % len(self.variables)]
        elif verb not in ("hook_into_python", "hook_into_torch"):
            verb = "make"
        device = _DEVICES[other % 3]
        if verb == "make":
            tensor = torch.empty(8 * (1 + one), device=device)
            self._made(tensor, bool(self.python))
        elif verb == "view":
            self._uses(tensor.view(-1)[one % 3:], storage)
        elif verb == "clone":
            self._made(tensor.clone(), bool(self.python))
        elif verb == "move":
            self._move(tensor, storage, device, non_blocking=one % 2 == 0)
        elif verb == "delete":
            del tensor
            _, storage = self.variables.pop(one % len(self.variables))
            self.model.user_gone(storage)
        elif verb == "allocate":
            self.mem.allocate((tensor, tensor))
            self.model.allocate(storage, bool(self.python))
        elif verb == "free":
            self.mem.free(tensor)
            self.model.free(storage)
        elif verb == "reset":
            self.mem.reset()
            self.model.reset()
        elif verb == "disable":
            handles = self.python if one % 2 else self.torch
            if handles:
                handles.pop(other % len(handles)).disable()
        else:
            handles = self.python if "python" in verb else self.torch
            handles.append(getattr(self.mem, verb)())

    def _move(self, tensor, storage, device, non_blocking):
        moved = tensor.to(device, non_blocking=non_blocking)
        # Simulated streams are eager: a synchronisation finds every copy over.
        torch.cuda.synchronize()
        if moved is tensor:
            self._uses(moved, storage)
            if self.python:
                storage.dies = storage.dies or storage.known
            return
        if self.torch:
            storage.dies = storage.dies or storage.known
        self._made(moved, bool(self.python or self.torch))

    def _made(self, tensor, heard):
        storage = _Storage(tensor.device, tensor.untyped_storage().nbytes())
        self.model.made(storage, heard)
        self._uses(tensor, storage, new=True)

    def _uses(self, tensor, storage, new=False):
        storage.users += 1
        self.variables.append((tensor, storage))
        heard = self.python and not new
        if heard and storage.known:
            storage.dies = True

    def check(self):
        for device in _DEVICES:
            assert self.mem.allocated(device)[0] == self.model.allocated[device]
            assert self.mem.freed(device)[0] == self.model.freed[device]
        assert self.mem.allocated()[0] == sum(self.model.allocated.values())


_VERBS = ("make", "view", "clone", "move", "delete", "allocate", "free",
          "delete", "make", "reset", "hook_into_python", "hook_into_torch",
          "disable")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(_VERBS), st.integers(0, 7),
                          st.integers(0, 5)), min_size=5, max_size=40))
def test_what_is_counted_is_what_the_model_counts(program):
    plain = torch.empty, torch.Tensor.to
    run = _Run()
    for verb, one, other in program:
        run.step(verb, one, other)
        run.check()
    del run
    assert (torch.empty, torch.Tensor.to) == plain
