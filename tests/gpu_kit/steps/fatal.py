# SPDX-License-Identifier: Apache-2.0
"""A device assert, and the ends of a process.

After an error that costs the context every call returns it; after the driver
has shut down every call returns another. The product must neither abort nor
hang nor say what is untrue: it raises, and the process ends with the exit code
that the program chose.
"""

import os
import re
import sys

from tests.gpu_kit import answer
from tests.gpu_kit import parts as product
from tests.gpu_kit.on_device import MIB
from tests.gpu_kit.on_device import OnDevice

ASKED = ("What do calls answer after a device assert and at the end of the "
         "process, and does the process end as its program says?")
_ASSERT = 710
# What the simulated device answers.
_AFTER_ASSERT = {
    "cuMemCreate": "CUDA_ERROR_ASSERT", "cuMemSetAccess": "CUDA_ERROR_ASSERT",
    "cudaDeviceSynchronize": "cudaErrorAssert",
    "cuMemUnmap": "CUDA_ERROR_ASSERT", "cuMemRelease": "CUDA_ERROR_ASSERT",
    # Believed to need no context; what was not unmapped is still in it.
    "cuMemAddressFree": "CUDA_ERROR_INVALID_VALUE"}
_AT_EXIT = dict.fromkeys(_AFTER_ASSERT, "CUDA_ERROR_DEINITIALIZED")
_ENDS = {"a plain end": 0, "sys.exit(3)": 3, "an uncaught exception": 1}
_CRASH = re.compile(r"terminate called|Segmentation|core dumped|CHECK|"
                    r"Fatal Python error|Aborted")


def run(said):
    broken = said.must(said.child(after_assert))
    said.promise("torch raises the device's assert", broken["raised"],
                 "synchronize() raised nothing")
    said.promise("an allocation raises after it", broken["allocate"][0],
                 broken["allocate"][1])
    said.promise("restore() raises after it", broken["restore"][0],
                 broken["restore"][1])
    said.promise("evict() raises after it, or says that nothing moved",
                 broken["evict"][0] or broken["evict"][1] == "0",
                 broken["evict"][1])
    for name in ("evict", "allocate", "empty_cache", "restore"):
        raised, words = broken[name]
        said.note(f"{name} after the assert {'raises' if raised else 'answers'}"
                  f" {words}")
    said.promise("freeing a tensor after it raises nothing",
                 not broken["free"][0], broken["free"][1])
    said.promise("report() still answers", broken["report"])
    said.promise("the process ends with 0 after an assert",
                 broken["exit"] == 0 and not _CRASH.search(broken["stderr"]),
                 f"exit {broken['exit']}: {broken['stderr'][-600:]}")
    for call, text in broken["calls"].items():
        said.fact(f"{call} after an assert", text, _AFTER_ASSERT[call])

    path = os.path.join(os.environ["KIT_WORK"], "at_exit.txt")
    ended = said.must(said.child(at_exit, path))
    said.promise("calls at the very end do not crash",
                 ended["exit"] == 0 and os.path.exists(path),
                 f"exit {ended['exit']}: {ended['stderr'][-600:]}")
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            for call, text in product.answers(file.read()).items():
                said.fact(f"{call} at the end of the process", _name(text),
                          _AT_EXIT[call])

    for way, code in _ENDS.items():
        found = said.child(end, way)
        said.promise(
            f"{way} with live and evicted memory: exit code {code}",
            found["exit"] == code and not _CRASH.search(found["stderr"]),
            f"{found['exit']}: {found['stderr'][-600:]}")


def _name(text):
    """The error's name in a sentence of the product's; or the sentence."""
    found = re.search(r"\b(CUDA_ERROR_\w+|cudaError\w+)", text)
    return found.group() if found else text


def _some_memory(torch):
    """A tensor on the device and one that has left it."""
    import stratalloc

    here = torch.ones(4 * MIB, device="cuda")
    away = torch.nn.Parameter(torch.ones(4 * MIB, device="cuda"))
    stratalloc.evict(away)
    return here, away


def after_assert(said):
    """A child: breaks its context."""
    device = OnDevice(said, host_budget=256 * MIB, disk_budget=0)
    torch = device.torch
    import stratalloc

    here, away = _some_memory(torch)
    stays = torch.nn.Parameter(torch.ones(16 * MIB, device="cuda"))
    parts = product.Parts()
    parts.open()
    parts.hold()
    torch.cuda.synchronize()
    found = {"raised": False}
    try:
        _break(said, torch)
        torch.cuda.synchronize()
    except RuntimeError:
        found["raised"] = True
    found["calls"] = {call: _name(text)
                      for call, text in parts.try_calls().items()}

    def words(function):
        """Has it raised, and the error or what it returned."""
        try:
            return False, str(function())
        except Exception as error:  # pylint: disable=broad-except
            return True, f"{type(error).__name__}: {error}"[:600]

    holder = [here]
    del here
    found["free"] = words(holder.clear)
    found["empty_cache"] = words(torch.cuda.empty_cache)
    found["evict"] = words(lambda: stratalloc.evict(stays))
    found["restore"] = words(lambda: stratalloc.restore(away))
    found["allocate"] = words(
        lambda: torch.ones(64 * MIB, device="cuda").numel())
    found["report"] = bool(stratalloc.report())
    del away, stays
    return found


def _break(said, torch):
    if said.simulated:
        from stratalloc import simulate

        simulate.driver().cudasim_fail(b"cudaDeviceSynchronize", 1, _ASSERT, 0)
        return
    # Writes "Assertion ... failed" to stderr and breaks the context.
    torch._assert_async(torch.zeros(1, device="cuda"))


def at_exit(said, path):
    """A child: asks the driver last of all."""
    parts = product.Parts()
    parts.try_at_exit(path)  # before CUDA is loaded
    device = OnDevice(said, host_budget=256 * MIB, disk_budget=0)
    kept = _some_memory(device.torch)
    parts.open()
    parts.hold()
    return {"bytes": sum(tensor.nbytes for tensor in kept)}


def end(said, way):
    """A child: ends this way, with memory on the device and off it."""
    device = OnDevice(said, host_budget=256 * MIB, disk_budget=0)
    sys.modules["__main__"].kept = _some_memory(device.torch)
    if way == "sys.exit(3)":
        sys.exit(3)
    if way == "an uncaught exception":
        raise ValueError("on purpose")
    return {"ended": True}


if __name__ == "__main__":
    answer.main(run, ASKED)
