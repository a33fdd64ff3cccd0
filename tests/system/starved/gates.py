# SPDX-License-Identifier: Apache-2.0
"""Streams that stand still, beside operators that do not need them.

    python -m tests.system.starved.gates [--programs two_devices,...]
        [--seeds 1] [--json FILE]

A gate is a host function (cudaLaunchHostFunc) that keeps its stream until a
thread opens it. That thread opens it after its own operators, which need room.
So an operator that waits for the gate without need never returns, and the gate
gives up. Each program notes what happened in order; there is no figure of time.

Thread-safety: a program has a process of its own, and its threads share one
Order.
Lifetime: a process ends with its program; after WATCHDOG_S it ends with the
frames of all threads.
Errors: what torch raises; a gate that gives up is in the row's "error".
Invariants: no thread sleeps to be late; it waits for an event, with a deadline.
"""

import argparse
import faulthandler
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from tests.system.starved import gate as gating
from tests.system.starved import place
from tests.system.starved import tables
from tests.system.starved import zygote
from tests.system.starved.gate import GIVE_UP_S, MIB, Gate, Order


def two_devices(order: Order, seed: int) -> int:
    """A stream of device 0 waits for what a thread does after its operators on
    device 1, while another thread's operator needs room on device 0."""
    import torch

    gating.devices(seed)
    first, second = gating.tensors(6, 16 * MIB), gating.tensors(6, 16 * MIB, 1)
    gate, stands = Gate(order), threading.Event()
    stream = torch.cuda.Stream(device=0)

    def on_device_0() -> None:
        with gating.on(stream):
            gating.add(first[:5])
            gate.shut(stream)
        order.note("A begins")
        stands.set()
        gating.add(first[5:])
        order.note("A returned")

    def on_device_1() -> None:
        stands.wait(GIVE_UP_S)
        gate.await_entered(stream)
        with torch.cuda.device(1):
            gating.add(second, 3)
        order.note("B returned")
        gate.open()

    gating.together(on_device_0, on_device_1)
    return gating.wrong(first, 1) + gating.wrong(second, 3)


def host_functions(order: Order, seed: int) -> int:
    """Eight host functions between the operators of a stream: each waits for a
    round of operators that a thread runs on device 1."""
    import torch

    gating.devices(seed)
    first, second = gating.tensors(8, 12 * MIB), gating.tensors(6, 16 * MIB, 1)
    gates = [Gate(order, f"{number}: ") for number in range(8)]
    stream = torch.cuda.Stream(device=0)

    def on_device_0() -> None:
        with gating.on(stream):
            for gate, tensor in zip(gates, first):
                gate.shut(stream)
                tensor.add_(1)
        order.note("A returned")

    def on_device_1() -> None:
        for number, gate in enumerate(gates):
            gate.await_entered(stream)
            with torch.cuda.device(1):
                gating.add(second)
            order.note(f"{number}: B returned")
            gate.open()

    gating.together(on_device_0, on_device_1)
    return gating.wrong(first, 1) + gating.wrong(second, len(gates))


def other_pages(order: Order, seed: int) -> int:
    """On one device: pages that a gated stream used cannot leave, and others
    can, for operators of another stream."""
    import torch

    gating.devices(seed)
    gated, others = gating.tensors(4, 8 * MIB), gating.tensors(6, 8 * MIB)
    gate, stream = Gate(order), torch.cuda.Stream()
    with gating.on(stream):
        gating.add(gated)
        gate.shut(stream)
    gate.await_entered(stream)
    with gating.on(torch.cuda.Stream()):
        gating.add(others, 3)
    order.note("B returned")
    gate.open()
    return gating.wrong(gated, 1) + gating.wrong(others, 3)


def collective(order: Order, seed: int) -> int:
    """Two threads with a device each meet in a collective; one enters late.

    A collective here is what its kernel does: on a stream of its own it holds a
    tensor and waits for the other rank's. Both ranks run operators that need
    room: the early one while its kernel stands there, the late one before. The
    late one does not wait for the early one's operators.
    """
    return _collective(order, seed, False)


def collective_beside(order: Order, seed: int) -> int:
    """The same; the late one does, so that the early one's must return beside
    its own kernel, on its own device."""
    return _collective(order, seed, True)


def _collective(order: Order, seed: int, late_waits: bool) -> int:
    import torch

    gating.devices(seed)
    tensors = [gating.tensors(6, 16 * MIB, rank) for rank in range(2)]
    streams = [torch.cuda.Stream(device=rank) for rank in range(2)]
    rounds = 4
    returned = [threading.Event() for _ in range(rounds)]
    stands = [threading.Event() for _ in range(rounds)]  # the early rank does
    # Kernel `rank` of a round goes on when the other rank's kernel is there.
    kernels = [[Gate(order, f"{number}, rank {rank}: ") for rank in range(2)]
               for number in range(rounds)]

    def enter(number: int, rank: int) -> None:
        with gating.on(streams[rank]):
            tensors[rank][0].add_(1)
            kernels[number][rank].shut(streams[rank])
        kernels[number][rank].await_entered(streams[rank])
        order.note(f"{number}: rank {rank} entered")

    def run(rank: int) -> None:
        own = tensors[rank]
        for number in range(rounds):
            if number % 2 == rank:  # the early one
                enter(number, rank)
                stands[number].set()
                with torch.cuda.device(rank):
                    gating.add(own[1:], 2)
                order.note(f"{number}: early returned")
                returned[number].set()
            else:
                stands[number].wait(GIVE_UP_S * 2)
                with torch.cuda.device(rank):
                    gating.add(own[1:], 2)
                order.note(f"{number}: late returned")
                if late_waits:
                    returned[number].wait(GIVE_UP_S * 2)
                enter(number, rank)
                for gate in kernels[number]:
                    gate.open()
            kernels[number][rank].passed.wait(GIVE_UP_S * 2)

    def rank_0() -> None:
        run(0)

    def rank_1() -> None:
        run(1)

    gating.together(rank_0, rank_1)
    return sum(gating.wrong(own[:1], rounds) + gating.wrong(own[1:], 2 * rounds)
               for own in tensors)


def two_processes(order: Order, seed: int) -> int:
    """A process whose gated stream waits for what another one does: both have
    pages on disk, in one folder."""
    import torch

    to_parent, to_child = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"host_budget": 16 * MIB, "disk_budget": 512 * MIB,
                    "disk_dir": folder}
        child = os.fork()
        if child == 0:
            _gated_process(order, seed, settings, to_parent[1], to_child[0])
        os.close(to_parent[1])
        assert os.read(to_parent[0], 1) == b"s", "the other process has ended"
        order.note("A begins")  # and its stream stands
        gating.devices(seed, **settings)
        tensors = gating.tensors(6, 16 * MIB)
        with torch.cuda.device(0):
            gating.add(tensors, 3)
        order.note("B returned")
        os.write(to_child[1], b"o")
        order.note(gating.OPENED)
        assert os.read(to_parent[0], 1) == b"r", "the gate of A gave up"
        order.note("A returned")
        assert os.waitpid(child, 0)[1] == 0
        return gating.wrong(tensors, 3)


def _gated_process(order: Order, seed: int, settings: dict[str, Any],
                   answers: int, asked: int) -> None:
    """Process A: "s" when its stream stands and its operator needs room, "r"
    when that returned. Never returns."""
    code = 1
    try:
        import torch

        gating.devices(seed, **settings)
        tensors = gating.tensors(6, 16 * MIB)
        gate, stream = Gate(order, "A: "), torch.cuda.Stream()
        with gating.on(stream):
            gating.add(tensors[:5])
            gate.shut(stream)

        def needs_room() -> None:
            gating.add(tensors[5:])

        def opens() -> None:
            gate.await_entered(stream)
            os.write(answers, b"s")
            if os.read(asked, 1) == b"o":
                gate.open()

        gating.together(needs_room, opens)
        if not (order.stood or gating.wrong(tensors, 1) or place.faults()):
            os.write(answers, b"r")
            code = 0
    finally:
        os._exit(code)  # pylint: disable=protected-access


Program = Callable[[Order, int], int]
# A program, and pairs of events of which the first comes before the second.
PROGRAMS: dict[str, tuple[Program, list[tuple[str, str]]]] = {
    "two_devices": (two_devices, [
        ("A begins", "B returned"), ("B returned", gating.OPENED),
        (gating.OPENED, "A returned")]),
    "host_functions": (host_functions, [
        (f"{number}: B returned", f"{number}: {gating.OPENED}")
        for number in range(8)] + [(f"7: {gating.OPENED}", "A returned")]),
    "collective": (collective, [
        (f"{number}: late returned", f"{number}, rank {rank}: {gating.OPENED}")
        for number in range(4) for rank in range(2)]),
    "collective_beside": (collective_beside, [
        (f"{number}: {which} returned",
         f"{number}, rank {rank}: {gating.OPENED}")
        for number in range(4) for which in ("early", "late")
        for rank in range(2)]),
    "other_pages": (other_pages, [("B returned", gating.OPENED)]),
    "two_processes": (two_processes, [
        ("A begins", "B returned"), ("B returned", "A returned")]),
}


def _child(name: str, seed: int) -> dict[str, Any]:
    order = Order()
    wrong = PROGRAMS[name][0](order, seed)
    return {"order": order.events, "stood": order.stood, "wrong": wrong,
            "moved": place.moved(), "faults": place.faults()}


def out_of_order(events: list[str], pairs: list[tuple[str, str]]) -> list[str]:
    """What of the pairs does not hold, or did not happen, in words."""
    found = [event for event in events if event.endswith(gating.GAVE_UP)]
    for first, second in pairs:
        missing = [one for one in (first, second) if one not in events]
        if missing:
            found.append(f"{missing[0]!r} did not happen")
        elif events.index(first) > events.index(second):
            found.append(f"{second!r} came before {first!r}")
    return found


def _row(name: str, seed: int) -> dict[str, Any]:
    try:
        row = zygote.run(_child, name, seed, timeout=2 * gating.WATCHDOG_S)
    except (zygote.Refused, zygote.Died) as error:
        return {"error": str(error), "trace": getattr(error, "trace", None)}
    found = out_of_order(row["order"], PROGRAMS[name][1])
    if row["wrong"]:
        found.append(f"{row['wrong']} tensors are wrong")
    if not row["moved"]["out"]:
        found.append("nothing moved: the threads had room")
    row["error"] = "\n    ".join(found + row["faults"] + (
        [row["stood"]] if row["stood"] else [])) or None
    return row


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.starved.gates", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", help="names with commas between them")
    parser.add_argument("--seeds", type=int, default=1,
                        help="so many orders in which streams advance (1)")
    parser.add_argument("--json", metavar="FILE", help="- is stdout")
    args = parser.parse_args(argv)
    zygote.prepare(devices=2, mode="async")
    rows = {}
    for name in (args.programs.split(",") if args.programs else PROGRAMS):
        for seed in range(args.seeds):
            rows[f"{name}, seed {seed}"] = row = _row(name, seed)
            print(f"{'RED ' if row['error'] else ''}{name}, seed {seed}"
                  + (f"\n    {row['error'][:4000]}" if row["error"] else ""),
                  flush=True)
    if args.json:
        tables.write_json(args.json, rows)
    return 1 if any(row["error"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
