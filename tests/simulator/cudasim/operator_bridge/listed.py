# SPDX-License-Identifier: Apache-2.0
"""The items of the operator list: what one is and how it is measured.

An item is a function of a device that returns the tensors to compare. It runs
on the CPU and on the simulated device; its difference is the largest absolute
one over all of them (counts of unequal elements for whole numbers). `bound` is
how large it may be, `why` the reason where that is not 0.
"""

import dataclasses

import torch
from torch.utils import _python_dispatch
from torch.utils._pytree import tree_leaves, tree_map

ITEMS = []


@dataclasses.dataclass(frozen=True)
class Item:
    """One line of the list."""

    name: str
    run: object
    bound: float
    why: str
    measures_itself: bool


def item(name, bound=0.0, why="", measures_itself=False):
    """Registers a function as an item.

    With measures_itself it takes no device and returns its difference.
    """

    def register(function):
        ITEMS.append(Item(name, function, bound, why, measures_itself))
        return function

    return register


def difference(expected, result):
    """The largest absolute difference between two trees of tensors."""
    left = [t for t in tree_leaves(expected) if isinstance(t, torch.Tensor)]
    right = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
    assert len(left) == len(right) > 0
    largest = 0.0
    for a, b in zip(left, right):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), (a.shape, b.shape)
        a, b = a.detach().cpu(), b.detach().cpu()
        if torch.equal(a, b) or a.numel() == 0:
            continue
        if a.is_complex():
            a, b = torch.view_as_real(a), torch.view_as_real(b)
        if not a.is_floating_point():
            largest = max(largest, float((a != b).sum()))
            continue
        gap = (a.double() - b.double()).abs()
        gap[a == b] = 0  # equal infinities
        largest = max(largest, float(gap.max().nan_to_num(nan=float("inf"))))
    return largest


def measure(one):
    """The difference of an item."""
    if one.measures_itself:
        return one.run()
    results = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        results.append(one.run(device))
        if device == "cuda":
            torch.cuda.synchronize()
    return difference(*results)


def state_of(model):
    """Gradients, parameters and buffers: what a train step leaves behind."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return gradients, list(model.parameters()), list(model.buffers())


_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot")
_HALF = (torch.float16, torch.bfloat16)


def _on_the_cpu(func, args, kwargs):
    """The operator's result on the CPU. A product of half precision sums in
    float32 and is rounded once, as on a GPU; what the CPU's own kernel does
    depends on the processor's instructions."""
    tensors = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
    if func.overloadpacket.__name__ not in _PRODUCTS or not (
        tensors[0].dtype in _HALF
    ):
        return func(*args, **kwargs)
    wide = tree_map(
        lambda value: value.float() if isinstance(value, torch.Tensor) else value,
        args,
    )
    return func(*wide, **kwargs).to(tensors[0].dtype)


class OperatorByOperator(_python_dispatch.TorchDispatchMode):
    """Repeats every operator on CPU copies of its arguments.

    For programs whose CPU form differs before any kernel runs (autocast lists
    other operators for CUDA than for the CPU): the program as a whole has
    nothing to be compared with, each of its operators has.
    """

    SKIPPED = ("record_stream", "_local_scalar_dense", "_record_function")

    def __init__(self):
        super().__init__()
        self.largest = 0.0
        self.compared = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = str(func)
        tensors = [
            t
            for t in tree_leaves((args, kwargs))
            if isinstance(t, torch.Tensor) and t.is_cuda
        ]
        skip = (
            not tensors
            or torch.Tag.nondeterministic_seeded in func.tags
            or "aten" not in name
            or "empty" in name
            or "_cudnn" in name
            or "_to_copy" in name
            or "_fused_" in name
            or any(part in name for part in self.SKIPPED)
            or not torch._C._dispatch_has_computed_kernel_for_dispatch_key(
                func.name(), "CPU"
            )
        )
        if skip:
            return func(*args, **kwargs)

        def to_cpu(value):
            if isinstance(value, torch.Tensor) and value.is_cuda:
                whole = torch.empty(0, dtype=value.dtype).set_(
                    value.untyped_storage().cpu(),
                    value.storage_offset(),
                    value.size(),
                    value.stride(),
                )
                return whole.conj() if value.is_conj() else whole
            if isinstance(value, torch.device) and value.type == "cuda":
                return torch.device("cpu")
            return value

        cpu_args, cpu_kwargs = tree_map(to_cpu, (args, kwargs))
        result = func(*args, **kwargs)
        expected = _on_the_cpu(func, cpu_args, cpu_kwargs)
        if any(isinstance(t, torch.Tensor) for t in tree_leaves(result)):
            self.largest = max(self.largest, difference(expected, result))
            self.compared += 1
        return result
