# SPDX-License-Identifier: Apache-2.0
"""The result of a run of the kit: one JSON file that grows step by step.

It is all the state there is: a later call, on another machine even, goes on
where the file ends. So it is written whole beside itself and renamed, after
each step and before it: a step that was begun and has no verdict was cut off
with the kit or with the machine.

    {"kit": {...}, "device": "cuda", "machines": [{...}],
     "steps": {NAME: {"verdict": ..., "asked": ..., "figures": {...}, ...}},
     "differences": ["NAME: sentence", ...]}

Verdicts of a step: ok; differs (from what the simulated device does, or from a
bar); failed; not here (this device or machine cannot run it, and `sentences`
say why); begun.
"""

import json
import os

OK, DIFFERS, FAILED = "ok", "differs", "failed"
NOT_HERE, BEGUN = "not here", "begun"
_FINISHED = (OK, DIFFERS, FAILED, NOT_HERE)
# A step that never came to its end so often is not begun a third time: the
# steps behind it are to be reached.
_TRIES = 2


class RecordError(Exception):
    """The file cannot be gone on with; says why and what to do."""


def write(path, value):
    """Replaces a file of JSON by another: readers see the one or the other."""
    beside = f"{path}.{os.getpid()}.part"
    with open(beside, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


class Record:
    """The file, and what it says of each step."""

    def __init__(self, path, kit, device):
        self.path = os.path.abspath(path)
        self._values = self._read(device)
        self._values.update(kit=kit, device=device)
        self._machine = None

    def _read(self, device):
        try:
            with open(self.path, encoding="utf-8") as file:
                values = json.load(file)
        except FileNotFoundError:
            return {"kit": {}, "device": device, "machines": [], "steps": {},
                    "differences": []}
        except (OSError, ValueError) as error:
            raise RecordError(
                f"{self.path} is no result of the kit ({error}); name another "
                "file or delete it") from None
        if not isinstance(values, dict) or "steps" not in values:
            raise RecordError(
                f"{self.path} is no result of the kit; name another file")
        if values.get("device") != device:
            raise RecordError(
                f"{self.path} is of --device {values.get('device')}; name "
                "another file, or give that device")
        return values

    def on_machine(self, facts):
        """What the following steps run on; one entry per different machine."""
        machines = self._values["machines"]
        if facts not in machines:
            machines.append(facts)
        self._machine = machines.index(facts)
        self._save()

    def is_finished(self, name):
        return self.verdict(name) in _FINISHED

    def verdict(self, name):
        return self.step(name).get("verdict")

    def step(self, name):
        return self._values["steps"].get(name, {})

    def begin(self, name):
        """False if the step was cut off too often to be begun again."""
        before = self.step(name)
        tries = before.get("tries", 0) if not self.is_finished(name) else 0
        if tries >= _TRIES:
            self.finish(name, {
                "verdict": FAILED, "sentences": [
                    f"begun {tries} times and cut off each time: the kit was "
                    "killed or the machine went away; --again "
                    f"{name} tries once more"]})
            return False
        self._put(name, {"verdict": BEGUN, "tries": tries + 1})
        return True

    def unfinished(self, name, sentence):
        """It was stopped for want of time, which is no try of its own."""
        self._put(name, {"verdict": BEGUN, "sentences": [sentence],
                         "tries": self.step(name).get("tries", 1) - 1})

    def finish(self, name, values):
        self._put(name, values)

    def _put(self, name, values):
        steps = self._values["steps"]
        steps[name] = {**values, "machine": self._machine,
                       "commit": self._values["kit"].get("commit", "")}
        self._values["differences"] = [
            f"{each}: {sentence}" for each, step in steps.items()
            if step["verdict"] in (DIFFERS, FAILED)
            for sentence in step.get("sentences", ())]
        self._save()

    def _save(self):
        write(self.path, self._values)
