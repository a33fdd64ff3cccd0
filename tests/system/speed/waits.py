# SPDX-License-Identifier: Apache-2.0
"""Virtual time that the program's thread spends in each operator and malloc.

Thread-safety: a Waits belongs to the thread that enters it.
Lifetime: one `with` block; the figures stay.
Errors: those of the operators pass through.
Invariants: an operator's time includes the mallocs of its results. A malloc is
an aten::empty, which launches no kernel.
"""

from torch.utils import _python_dispatch

from tests.system.speed import clock

_MALLOC = "aten::empty.memory_format"


class Waits(_python_dispatch.TorchDispatchMode):
    """Notes what each operator took of the program's clock.

    Attributes:
      operators: nanoseconds of each operator that is not a malloc.
      mallocs: nanoseconds of each malloc that the program asked for.
    """

    def __init__(self):
        super().__init__()
        self.operators, self.mallocs = [], []
        self._now = clock.driver().cudasim_virtual_now_ns

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        began = self._now()
        result = func(*args, **(kwargs or {}))
        taken = self._now() - began
        name = func.name()
        if name == _MALLOC:
            self.mallocs.append(taken)
        elif not func.is_view:
            self.operators.append(taken)
        return result

    def summary(self):
        """{"operators": {...}, "mallocs": {...}} of quantiles()."""
        return {"operators": quantiles(self.operators),
                "mallocs": quantiles(self.mallocs)}


def quantiles(values):
    """The median, the 99th percentile and the maximum, in the unit given."""
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        return {"count": 0, "p50": 0, "p99": 0, "max": 0}
    return {"count": count, "p50": ordered[count // 2],
            "p99": ordered[min(count - 1, count * 99 // 100)],
            "max": ordered[-1]}
