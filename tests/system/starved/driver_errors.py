# SPDX-License-Identifier: Apache-2.0
"""A starved model while a call of the driver fails, once or from then on.

    python -m tests.system.starved.driver_errors [--calls cuMemUnmap ...]
        [--errors 2 600 ...] [--nth 1 2 7] [--durations once always]
        [--sentences] [--json FILE]

Each row is a process of its own on a card that holds two thirds of the
parameters, with host memory and a disk below it. While the call fails the
program uses the model, trains it with a learning rate of 0, evicts, restores,
empties the cache, asks for statistics and captures a graph; what raises is
noted, and the program goes on. Then the driver is well again, unless the error
is one that costs the context.

A device that could not be opened for tiering refuses what does not fit, and
says why. Red: the process dies, an exception has no text, parameters that are
not what they were, an output unlike the CPU's, or a violation. What torch's own
allocator does under the same fault is asked where ours is red, and printed
beside it; it makes other calls before, so its first few are tried, up to the
one under which it says the same.
"""

import argparse
import ctypes
import sys
import tempfile

from tests.system.starved import place
from tests.system.starved import tables
from tests.system.starved import zygote

MIB = 1 << 20
_LAYERS = 6
_WIDTH = 1024
_CARD = 16 * MIB
_NATIVE_CALLS = 10  # more than torch makes between two of ours

# What PyTorch, the core and the driver's part of the simulated device are asked
# in such a program.
CALLS = (
    "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease",
    "cuMemAddressReserve", "cudaMemGetInfo", "cudaMemcpyAsync",
    "cudaHostRegister", "cudaHostUnregister", "cudaEventCreateWithFlags",
    "cudaEventRecord", "cudaEventQuery", "cudaEventSynchronize",
    "cudaEventDestroy", "cudaStreamCreateWithFlags", "cudaStreamQuery",
    "cudaStreamSynchronize", "cudaStreamWaitEvent", "cudaStreamIsCapturing",
    "cudaDeviceSynchronize", "cuModuleLoadData", "cuModuleGetFunction",
    "cuLaunchKernel", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuCtxGetDevice",
    "cuDevicePrimaryCtxRetain", "cudaThreadExchangeStreamCaptureMode",
)
# Invalid value, out of memory, the runtime is unloading, not ready, unknown.
PASSING = (1, 2, 4, 600, 999)
# Illegal address, device assert, launch failure: the context is lost.
STICKY = (700, 710, 719)


def _model():
    import torch

    torch.manual_seed(3)
    layers = []
    for _ in range(_LAYERS):
        layers += [torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers)


class _Sentences:
    """Goes on after an exception, and keeps what it said."""

    def __init__(self):
        self.heard = []

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            return False
        self.heard.append(f"{kind.__name__}: {error}")
        return issubclass(kind, Exception)


def _use(model, inputs, tiers):
    """Everything a program does; each step whether or not the last worked."""
    import torch

    said = _Sentences()
    with said:
        model(inputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.)
    for _ in range(2):
        with said:
            optimizer.zero_grad()
            for layer in model:
                if list(layer.parameters()):
                    layer(inputs).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
    if tiers:
        import stratalloc

        for step in (stratalloc.evict, stratalloc.restore, stratalloc.report):
            with said:
                step()
    for step in (torch.cuda.empty_cache, torch.cuda.memory_stats,
                 torch.cuda.memory_snapshot, torch.cuda.synchronize):
        with said:
            step()
    with said:
        torch.ones(3 * MIB, device="cuda").sum()
    return said.heard


def _capture(model, inputs, tiers):
    import torch

    del tiers
    said = _Sentences()
    layer, graph = model[0], torch.cuda.CUDAGraph()
    with said:
        with torch.no_grad(), torch.cuda.graph(graph):
            layer(inputs)
        graph.replay()
        torch.cuda.synchronize()
    return said.heard


SITUATIONS = {"use": _use, "capture": _capture}
DURATIONS = {"once": False, "always": True}  # whether it fails forever


def _run(situation, call, error, nth, forever, allocator):
    import torch

    from stratalloc import simulate

    model = _model()
    inputs = torch.randn(8, _WIDTH)
    with torch.no_grad():
        right = model(inputs)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        ours = allocator == "stratalloc"
        place.device(_CARD if ours else 64 * MIB, allocator, **(
            {"host_budget": 8 * MIB, "disk_budget": 64 * MIB,
             "disk_dir": folder} if ours else {}))
        driver = simulate.driver()
        # Those of the opening fail, too.
        if driver.cudasim_fail(call.encode(), ctypes.c_long(nth), error,
                               int(forever)) != 0:
            raise ValueError(f"{call} is no function of CUDA")
        said = _Sentences()
        for attempt in range(3):
            with said:
                model, inputs = model.to("cuda"), inputs.to("cuda")
                break
        else:
            attempt = None
        sentences = said.heard
        if attempt is not None:
            sentences += SITUATIONS[situation](model, inputs, ours)
        driver.cudasim_clear_faults()
        lost = bool(driver.cudasim_device_error(0))
        row = {"sentences": sentences, "lost": lost, "same": True,
               "faults": []}
        if not lost:
            try:
                model, inputs = model.to("cuda"), inputs.to("cuda")
                with torch.no_grad():
                    row["same"] = torch.equal(model(inputs).cpu(), right)
            except torch.OutOfMemoryError as error:
                # It was opened while the call failed.
                if "can evict nothing from this GPU: " not in str(error):
                    raise
                row["without_tiering"] = str(error)
            row["same"] &= all(torch.equal(value.cpu(), state[name])
                               for name, value in model.state_dict().items())
            # Calls that were made to fail are refused calls.
            row["faults"] = simulate.violations()[:3]
        del model, inputs
        return row


def red(row):
    """Why a row is red; "" if it is not."""
    if row.get("error"):
        return row["error"]
    if not row["same"]:
        return "other bytes than before"
    if row["faults"]:
        return "; ".join(row["faults"])
    empty = [text for text in row["sentences"] if text.endswith(": ")]
    return f"an exception without a text: {empty[0]}" if empty else ""


def _row(situation, call, error, nth, forever, allocator="stratalloc"):
    row = {"situation": situation, "call": call, "error_code": error,
           "nth": nth, "forever": forever, "allocator": allocator}
    try:
        row.update(zygote.run(_run, situation, call, error, nth, forever,
                              allocator, timeout=120))
    except (zygote.Refused, zygote.Died) as why:
        row["error"] = str(why)
    return row


def rows(situations, calls, errors, nths, durations):
    for situation in situations:
        for call in calls:
            for error in errors:
                for nth in nths:
                    for duration in durations:
                        case = (situation, call, error, nth,
                                DURATIONS[duration])
                        row = _row(*case)
                        if red(row):
                            row["native"] = _natively(row, *case)
                        yield row


def _natively(row, situation, call, error, nth, forever):
    """What torch's own allocator makes of it: the same sentence, or its own.

    An exception that torch cannot survive (a graph's destructor, say) ends its
    process under either allocator, from one call of torch's own or another.
    """
    wanted = red(row)
    first = None
    for tried in [nth, *(n for n in range(1, _NATIVE_CALLS) if n != nth)]:
        found = red(_row(situation, call, error, tried, forever, "native"))
        # The process's end, and what torch said: two lines.
        if found and found.splitlines()[:2] == wanted.splitlines()[:2]:
            return f"the same at {tried}"
        first = found if first is None else first
    return first or "well"


def _line(row):
    how = "for good" if row["forever"] else "once"
    text = (f"{row['situation']:8} {row['call']:26} {row['error_code']:4} at "
            f"{row['nth']}, {how:8}")
    heard = row.get("sentences", [])
    text += f" {len(heard):2} exceptions"
    text += ", device lost" if row.get("lost") else ""
    text += ", without tiering" if row.get("without_tiering") else ""
    if red(row):
        text += f"  RED {red(row)}  (native: {row['native']})"
    return text


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--situations", nargs="+", choices=SITUATIONS,
                        default=list(SITUATIONS))
    parser.add_argument("--calls", nargs="+", default=CALLS, metavar="NAME")
    parser.add_argument("--errors", nargs="+", type=int,
                        default=PASSING + STICKY, metavar="NUMBER")
    parser.add_argument("--nth", nargs="+", type=int, default=(1, 2, 7))
    parser.add_argument("--durations", nargs="+", choices=DURATIONS,
                        default=list(DURATIONS),
                        help="the call fails once, or from then on")
    parser.add_argument("--sentences", action="store_true",
                        help="print each sentence once, with its calls")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    zygote.prepare(mode="async")
    found, said = [], {}
    for row in rows(options.situations, options.calls, options.errors,
                    options.nth, options.durations):
        found.append({**row, "red": red(row)})
        for sentence in row.get("sentences", []):
            said.setdefault(sentence, set()).add(row["call"])
        if options.json != "-":
            print(_line(row), flush=True)
    if options.sentences:
        for sentence, calls in sorted(said.items()):
            print(f"\n{', '.join(sorted(calls))}\n    {sentence}")
    if options.json:
        tables.write_json(options.json, {"rows": found})
    bad = [row for row in found if row["red"]]
    torchs = sum(row["native"].startswith("the same at ") for row in bad)
    if options.json != "-":
        print(f"{len(found) - len(bad)} of {len(found)} rows well, "
              f"{len(bad)} red, {torchs} of them as under torch's own")
    return 1 if len(bad) > torchs else 0


if __name__ == "__main__":
    sys.exit(main())
