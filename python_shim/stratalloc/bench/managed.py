# SPDX-License-Identifier: Apache-2.0
"""What a MemoryManager costs a training step that fits the card.

    python -m stratalloc.bench.managed [--device sim|cuda] [--rounds N]
        [--steps N] [--json FILE]

The same step of a small transformer in three processes: under torch's own
allocator, under ours, and under ours with a started manager of every Linear
(compat.memory_management, its defaults, nothing offloaded when it is wrapped).
They are asked one after the other, in an order that turns from round to round,
so that what slows the machine down for a while slows all of them. A ratio is
the median of the rounds', with its 95 % interval (paired.py): of wall time, and
of the processor time of all threads of the process, the monitor's among them.
"""

import argparse
import json
import subprocess
import sys
import time

from stratalloc._terminal import command as _command
from stratalloc.bench import paired
from stratalloc.demo.phases import package_environment

_MODES = ("native", "ours", "managed")
_CLOCKS = {"wall": time.perf_counter_ns, "processor": time.process_time_ns}
_LAYERS, _WIDTH, _HEADS, _TOKENS, _BATCH = 2, 256, 4, 32, 4
_WARM = 3  # steps


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("sim", "cuda"), default="sim")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=5, help="of each round")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--mode", choices=_MODES, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.rounds < 1 or args.steps < 1:
        parser.error("--rounds and --steps must be at least 1")
    if args.mode is not None:
        return _work(args)
    values = _measured(args)
    if args.json is not None:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(values, file, indent=1)
    else:
        _show(values)
    return _command.EXIT_OK


def _measured(args):
    workers = {mode: _worker(args, mode) for mode in _MODES}
    taken = {mode: {clock: [] for clock in _CLOCKS} for mode in _MODES}
    try:
        for turn in range(args.rounds):
            shift = turn % len(_MODES)
            for mode in _MODES[shift:] + _MODES[:shift]:
                for clock, value in _ask(workers[mode], mode).items():
                    taken[mode][clock].append(value)
    finally:
        for worker in workers.values():
            worker.stdin.close()
            worker.stdout.close()
            worker.wait()
    values = {"device": args.device, "rounds": args.rounds, "ns": {}}
    for clock in _CLOCKS:
        values["ns"][clock] = {
            mode: paired.median(taken[mode][clock])[0] for mode in _MODES}
        for ours, base in (("ours", "native"), ("managed", "native"),
                           ("managed", "ours")):
            values.setdefault(f"{ours}/{base}", {})[clock] = paired.ratio(
                taken[ours][clock], taken[base][clock])
    return values


def _worker(args, mode):
    environment = package_environment()
    for name in ("STRATALLOC", "STRATALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        environment.pop(name, None)
    return subprocess.Popen(
        [sys.executable, "-m", "stratalloc.bench.managed", "--mode", mode,
         "--device", args.device, "--steps", str(args.steps)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment)


def _ask(worker, mode):
    try:
        worker.stdin.write("\n")
        worker.stdin.flush()
    except BrokenPipeError:
        pass  # its reason is above
    line = worker.stdout.readline()
    if not line:
        raise SystemExit(f"stratalloc: the process of {mode!r} ended")
    return json.loads(line)


def _show(values):
    print(f"a step of {_LAYERS} layers of {_WIDTH}, {values['device']}, "
          f"{values['rounds']} rounds")
    for clock, medians in values["ns"].items():
        print(f"  {clock} time: " + ", ".join(
            f"{mode} {ns / 1e6:.2f} ms" for mode, ns in medians.items()))
        for name, clocks in values.items():
            if "/" in name:
                middle, low, high = clocks[clock]
                print(f"    {name}: {middle:.4f} ({low:.4f} to {high:.4f})")


def _work(args):
    """A process of one mode: a block of steps for every line of stdin."""
    if args.device == "sim":
        from stratalloc import simulate

        simulate.load(256 << 20)
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if args.mode != "native":
        import stratalloc

        stratalloc.enable(host_budget=256 << 20, disk_budget=0)
    layer = torch.nn.TransformerEncoderLayer(
        _WIDTH, _HEADS, 4 * _WIDTH, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(
        layer, _LAYERS, enable_nested_tensor=False).to("cuda")
    manager = None
    if args.mode == "managed":
        from stratalloc.compat import memory_management as mm

        manager = mm.auto_manage_model(
            model, mm.MemoryConfig(eager_offload_on_wrap=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=.01)
    batch = torch.randn(_BATCH, _TOKENS, _WIDTH, device="cuda")

    def steps(count):
        for _ in range(count):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        torch.cuda.synchronize()

    steps(_WARM)
    for _ in sys.stdin:
        began = {name: clock() for name, clock in _CLOCKS.items()}
        steps(args.steps)
        print(json.dumps({name: (clock() - began[name]) / args.steps
                          for name, clock in _CLOCKS.items()}), flush=True)
    if manager is not None:
        assert manager.get_memory_summary()["system"]["total_offloads"] == 0
        manager.cleanup()
    return _command.EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
