# SPDX-License-Identifier: Apache-2.0
"""A driver that has shut down answers 4 to everything, and ends nothing.

At exit that is what whoever is destroyed late finds. Each program is a process
of its own.
"""

import textwrap

from bazel import programs

HEAD = """
import atexit, ctypes, gc, threading
from stratalloc import simulate
simulate.load("64MiB", mode="async")
import torch, stratalloc
sim = simulate.driver()
assert stratalloc.enable(host_budget="1GiB")
def weights(count):
    return [torch.nn.Parameter(torch.ones(1 << 18, device="cuda"))
            for _ in range(count)]
"""


def run(program):
    """What it printed; it must end by itself, and well."""
    done = programs.run("-c", HEAD + textwrap.dedent(program), merged=True,
                        fresh=True)  # torch's destructors find no driver
    assert done.returncode == 0, done.stdout[-6000:]
    assert "terminate called" not in done.stdout, done.stdout[-6000:]
    return done.stdout


def test_everything_that_is_asked_answers():
    out = run("""
    here, away = weights(6), weights(6)
    assert stratalloc.evict(away) == 6 << 20
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        used = here[0] * 2
    used.record_stream(torch.cuda.current_stream())
    sim.cudasim_shut_down()
    said = {}
    def attempt(name, what):
        try:
            what()
            said[name] = "returned"
        except RuntimeError as error:
            said[name] = str(error).splitlines()[0]
    attempt("malloc", lambda: torch.empty(8 << 20, device="cuda"))
    attempt("small malloc", lambda: torch.empty(16, device="cuda"))
    attempt("evict", lambda: stratalloc.evict(here))
    attempt("restore", lambda: stratalloc.restore(away))
    attempt("operator", lambda: away[0] * 2)
    attempt("pin", lambda: stratalloc.pin(away[1]))
    attempt("empty_cache", torch.cuda.empty_cache)
    attempt("synchronize", torch.cuda.synchronize)
    attempt("report", lambda: stratalloc.report(0))
    attempt("memory_summary", lambda: stratalloc.memory_summary(0))
    attempt("memory_stats", lambda: torch.cuda.memory_stats(0))
    attempt("free", here.clear)
    attempt("free of what is away", away.clear)
    attempt("free of another stream", lambda: globals().pop("used"))
    gc.collect()
    for name, text in said.items():
        print(f"{name}: {text}")
    assert len(said) == 14
    print("ended well")
    """)
    assert out.count("ended well") == 1, out
    said = dict(line.split(": ", 1) for line in out.splitlines()
                if ": " in line and not line.startswith("stratalloc"))
    for name in ("report", "memory_summary", "memory_stats", "free",
                 "free of what is away", "free of another stream"):
        assert said[name] == "returned", (name, out)
    for name in ("malloc", "restore", "operator"):
        assert "driver shutting down" in said[name], (name, out)
    # What could not leave is logged, and is no error of who asked.
    assert "eviction stopped" in out


def test_what_lives_longer_than_the_driver():
    """Blocks that nobody frees, pending work, and a background thread."""
    out = run("""
    kept = weights(12)
    stratalloc.evict(kept[:6])
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        kept.append(kept[7] * 2)
    kept[7].record_stream(side)
    for each in [*kept, side]:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
    stop = threading.Event()
    def evict_for_ever():
        while not stop.is_set():
            stratalloc.evict()
    threading.Thread(target=evict_for_ever, daemon=True).start()
    for _ in range(20):
        kept[8] * 2
    atexit.register(print, "python has ended", flush=True)
    """)
    assert out.splitlines()[-1] == "python has ended", out
