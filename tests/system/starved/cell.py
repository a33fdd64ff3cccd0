# SPDX-License-Identifier: Apache-2.0
"""One cell of the matrix, each run of it in a child of the zygote.

The CPU says what is right; torch's own allocator on a large card says what the
job needs and how far that device is from the CPU; then the same job runs on a
card that has that need divided by the ratio.
"""

import contextlib
import os
import time

import torch

from tests.system.starved import comparison
from tests.system.starved import jobs
from tests.system.starved import largest
from tests.system.starved import models
from tests.system.starved import place
from tests.system.starved import zygote

# What a job should need, in all: enough handles of 2 MiB for each lifetime
# class on the smallest card, and a second or so of this machine.
NEED = 48 << 20
STEPS = 3


class Reference:
    """A model and a job unstarved: its need and its results, in files."""

    def __init__(self, model, job, folder, hidden=models.HIDDEN):
        self.names = model, job
        self.note = ""
        self.hidden = hidden
        self.need = self.operator_bytes = 0
        self.operator = ""
        self._files = {where: os.path.join(folder, f"{model}-{job}.{where}")
                       for where in ("cpu", "native")}
        self._measure()

    def _build(self):
        """The same model each time: built once, the children inherit it."""
        recipe, job = models.MODELS[self.names[0]], jobs.JOBS[self.names[1]]
        self.model = recipe.of_size(NEED // job.copies, self.hidden)
        self.parameters = models.parameter_bytes(self.model)
        self.batches = recipe.batches(STEPS)

    def _measure(self):
        self._build()
        fault = zygote.run(self._on_cpu)
        if fault:
            raise zygote.Died(fault)
        self.need, self.native_difference = zygote.run(self._on_native)
        self.operator_bytes, self.operator = zygote.run(self._largest)

    def shrink(self, ratio):
        """Makes the cell smaller if a single operator exceeds its card."""
        while (self.operator_bytes > self.card(ratio)
               and self.hidden > 4 * models.HEADS):
            was = self.operator_bytes
            self.hidden //= 2
            self.note = (f"made smaller: {self.operator} took {was} bytes; "
                         f"hidden size now {self.hidden}")
            self._measure()

    def card(self, ratio):
        return place.pages(self.need / ratio)

    def work(self, device):
        return jobs.JOBS[self.names[1]].run(self.model, self.batches, device)

    def _on_cpu(self):
        result = self.work("cpu")
        torch.save(result, self._files["cpu"])
        return comparison.sound(result)

    def _on_native(self):
        result = self.work("cuda")
        torch.save(result, self._files["native"])
        return (torch.cuda.max_memory_allocated(),
                self.difference("cpu", result))

    def _largest(self):
        with largest.Largest() as found:
            self.work("cpu")
        return found.bytes, found.name

    def difference(self, where, result):
        return comparison.difference(torch.load(self._files[where]), result)

    def close(self):
        self.model = None
        for path in self._files.values():
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)


def _starved(reference, ratio):
    place.device(reference.card(ratio))
    started = time.monotonic()
    try:
        result = reference.work("cuda")
        torch.cuda.synchronize()
    finally:
        seconds = time.monotonic() - started
    return {
        "seconds": round(seconds, 2), "moved": place.moved(),
        "faults": place.faults(),
        "difference": reference.difference("cpu", result),
        "unstarved_difference": reference.difference("native", result),
    }


def run(reference, ratio):
    """One row: what was found, and "error" if the cell is red."""
    reference.shrink(ratio)
    row = {
        "model": reference.names[0], "job": reference.names[1],
        "ratio": ratio, "need": reference.need,
        "card": reference.card(ratio), "parameters": reference.parameters,
        "operator_bytes": reference.operator_bytes,
        "operator": reference.operator,
        "native_difference": reference.native_difference,
        "note": reference.note, "error": None,
    }
    try:
        row.update(zygote.run(_starved, reference, ratio))
    except (zygote.Refused, zygote.Died) as error:
        row["error"] = str(error)
        row["trace"] = getattr(error, "trace", None)
        return row
    row["error"] = _fault(row)
    return row


def _fault(row):
    """What is wrong with a run that came to its end, or None."""
    if row["faults"]:
        return "; ".join(row["faults"])
    if not row["moved"]["in"]:
        return "nothing moved: the card was not too small, or nobody looked"
    # Another bar than the CPU only where the device itself differs from it.
    if row["difference"] == 0 or (row["native_difference"] != 0
                                  and row["unstarved_difference"] == 0):
        return None
    return (f"wrong numbers: {row['difference']:.3g} from the CPU, "
            f"{row['unstarved_difference']:.3g} from the same device "
            f"unstarved, which is {row['native_difference']:.3g} from the CPU")
