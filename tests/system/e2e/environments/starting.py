# SPDX-License-Identifier: Apache-2.0
"""How tests of this folder start programs, and what each process must say."""

import json
import os

from tests.system.e2e import running

_HERE = os.path.dirname(os.path.abspath(__file__))
MEMORY = "24MiB"


def program(name):
    return os.path.join(_HERE, "programs", name)


def device():
    """Options of `stratalloc run`."""
    return ["--simulate", MEMORY] if running.SIMULATED else []


def settings(conf):
    return conf if running.SIMULATED else f"gpu_limit:{MEMORY},{conf}"


def launched(text, *arguments, **more):
    """Runs the text in a process with two devices, as have those that it
    starts; the environment is theirs."""
    devices = ("from stratalloc import simulate; "
               f"simulate.load({MEMORY!r}, devices=2); simulate.for_children(); "
               if running.SIMULATED else "")
    # In a fork, which does not ask the environment as an interpreter does.
    theirs = {name: more.pop(name) for name in list(more)
              if name.startswith("STRATALLOC")}
    return running.python(
        "-c", f"import os; {devices}os.environ.update({theirs!r}); {text}",
        *arguments, **more)


def machine_memory():
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check(facts):
    """One process trained, under the allocator, more than its device holds."""
    assert facts["enabled"] and facts["same"], facts
    # 96 MiB of tensors in 24 MiB, several times over.
    assert facts["evicted"] > 96 << 20 and facts["restored"] > 72 << 20, facts


def trained(done):
    """The facts of a program that is one process."""
    facts = json.loads(running.must_work(done).splitlines()[-1])
    check(facts)
    if running.SIMULATED:
        assert "0 launches without a twin, 0 refused calls, 0 violations" in (
            done.stderr.splitlines()[-1])
    return facts


def all_trained(folder, count):
    """The facts that so many processes left in the folder."""
    found = [json.loads(path.read_text())
             for path in sorted(folder.glob("*.json"))]
    assert len(found) == count, found
    for facts in found:
        check(facts)
    return found
