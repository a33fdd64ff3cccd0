# SPDX-License-Identifier: Apache-2.0
"""The steps of the kit, in the order in which they are run.

What a GPU is needed for most comes first. Each is a file of its name in steps/
and is run as a process of its own (answer.py). `limit` seconds end it; `usual`
is what it is expected to need on a GPU, by which the kit decides whether it
fits into what is left of --minutes.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Step:
    """One step; `about` is one line of --list."""

    name: str
    about: str
    usual: int
    limit: int
    of: str | None = None  # which part of the file named first

    @property
    def file(self):
        return self.name.partition("-")[0]


STEPS = (
    Step("first", "one context and one tensor: memory, time, kind of handles",
         40, 200),
    Step("costs", "create, map, access, unmap, release of the product's "
         "handles: 2, 32, 128 MiB x 1, 8, 64, 512, idle and under a kernel",
         120, 480),
    Step("checksum", "the checksum kernel: right, how fast, what it takes",
         25, 120),
    Step("evict", "evict() and restore() of 16 GiB, first and steady",
         60, 300),
    Step("conformance", "what CUDA does, check by check", 60, 480),
    Step("training", "eager training with 1.3 times the limit", 100, 480),
    Step("compiled", "torch.compile under pressure, whole and per layer",
         100, 480),
    Step("triton", "raw Triton kernels on evicted memory", 40, 200),
    Step("flash", "flash attention under pressure", 40, 200),
    Step("capture", "graphs whose operands are asked to leave, and whose "
         "memory is mapped anew", 40, 200),
    Step("fatal", "a device assert, and the ends of a process", 90, 300),
    Step("pair", "cost of a malloc and free, of scopes and of the guard",
         90, 480),
    Step("fits", "step time of a job that fits, against PyTorch's allocator",
         100, 480),
    Step("offload", "inference with a model twice the limit, against bus, "
         "computing and accelerate", 100, 480),
    Step("engine", "passes and steps of 1.05 to 3 times the limit, against bus "
         "and computing", 200, 480),
    Step("profile", "bandwidths, peaks, latencies: a profile of the card",
         60, 300),
    Step("neighbours", "does mapping one range slow kernels on another?",
         30, 120),
    Step("full", "what a full card refuses; address space", 30, 200),
    Step("host", "pinned memory: registered, allocated, mapped at a device "
         "address", 60, 300),
    Step("differential", "random programs under PyTorch's allocator and ours",
         60, 480),
    Step("demo", "the demo of the package", 60, 480),
    *(Step(f"e2e-{of}", f"end-to-end tests: {of}_test", usual, 500, of)
      for of, usual in (("ways_in", 60), ("evicted", 120), ("training", 120),
                        ("list_operators", 180), ("what_stays", 180),
                        ("corruption", 90))),
)


def named(names):
    """The steps of these names, in the order of the list; KeyError."""
    unknown = set(names) - {step.name for step in STEPS}
    if unknown:
        raise KeyError(", ".join(sorted(unknown)))
    return [step for step in STEPS if step.name in names]
