# SPDX-License-Identifier: Apache-2.0
"""The workers of a comparison: processes fed with programs by a pipe."""

import json
import os
import selectors
import subprocess
import sys
import tempfile

from tests.system.differential import program

# A program takes milliseconds; a worker that says nothing for so long hangs.
SECONDS = 60
START_SECONDS = 120


class Worker:
    """One process under one allocator, started when first needed."""

    def __init__(self, allocator, environment=None):
        self.allocator = allocator
        self.environment = environment or {}
        self.process = None
        self.errors = None

    def start(self):
        environment = dict(os.environ)
        environment.pop("STRATALLOC", None)
        environment.update(
            SIMULATED_ALLOCATOR=self.allocator,
            STRATALLOC_CONF="tiering:off",
            PYTHONUNBUFFERED="1",
            **self.environment,
        )
        self.errors = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.differential.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment,
        )
        ready = self._answer(START_SECONDS)
        if ready.get("ready") != self.allocator or ready.get("dirty"):
            self.stop()
            raise RuntimeError(f"the {self.allocator} worker: {ready}")

    def send(self, steps, case, look=None):
        if self.process is None:
            self.start()
        line = json.dumps({"steps": steps, "case": case, "look": look})
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # receive() says why

    def receive(self):
        answer = self._answer(SECONDS)
        if "died" in answer or "dirty" in answer:
            self.stop()  # the next program gets a fresh one
        return answer

    def _answer(self, seconds):
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                self.process.kill()
                return {"died": f"no answer in {seconds} s"}
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        code = self.process.wait()
        self.errors.seek(0)
        # The last words come before Python's list of its modules.
        said = self.errors.read().split("Extension modules")[0]
        last = [each for each in said.split("\n") if each.strip()]
        return {"died": f"exit code {code}: {' | '.join(last[-25:])}"}

    def stop(self):
        if self.process is None:
            return
        self.process.stdin.close()
        try:
            self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()
        self.process = None


class Pair:
    """Native and ours, side by side on the same program."""

    def __init__(self, devices=1, mode="eager", planted=None):
        """`planted`: environment of our side only (plant.cc)."""
        environment = {"DEVICES": str(devices), "MODE": mode}
        self.native = Worker("native", environment)
        self.ours = Worker("stratalloc", {**environment, **(planted or {})})

    def run(self, steps, case):
        """What both showed; they compute at the same time."""
        self.native.send(steps, case)
        self.ours.send(steps, case)
        return self.native.receive(), self.ours.receive()

    def stop(self):
        self.native.stop()
        self.ours.stop()


class Pairs:
    """A pair for each number of devices, started when first needed."""

    def __init__(self, mode="eager", planted=None):
        self.pairs = {n: Pair(n, mode, planted) for n in (1, 2)}

    def run(self, steps, case):
        return self.pairs[program.devices_of(steps)].run(steps, case)

    def look(self, side, steps, case, at):
        """One side again, with its layout at that count, or at "every" one.

        A snapshot merges what ours has in bins, and so changes what comes after
        it; native's changes nothing.
        """
        worker = getattr(self.pairs[program.devices_of(steps)], side)
        worker.send(steps, case, at)
        return worker.receive()

    def stop(self):
        for pair in self.pairs.values():
            pair.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
