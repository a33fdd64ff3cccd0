# SPDX-License-Identifier: Apache-2.0
"""A card whose handles are larger than the least: what a recording says could
be given back is what is given back."""

from stratalloc import simulate

simulate.load("24GiB")

import torch  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402
from stratalloc.telemetry.replay import Replay  # noqa: E402

MIB = 1 << 20


def test_what_is_releasable_is_what_empty_cache_gives_back():
    with stratalloc.trace() as trace:
        kept = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
                for _ in range(200)]
        small = [torch.empty(900, dtype=torch.uint8, device="cuda")
                 for _ in range(6000)]
        del kept[1:100], kept[3:60], small[1:4000]
        torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    gave = before - torch.cuda.memory_reserved()
    run = trace.run()
    walked = Replay(run, 0)
    assert {handle for _, _, handle in run.devices[0].regions} == {
        2 * MIB, 32 * MIB}
    parts = walked.reserved_parts(len(run.events) - 1)
    assert (parts.releasable, parts.total) == (gave, before)
    assert parts.stranded > 4 * MIB and gave > 2 * MIB
    del kept, small
