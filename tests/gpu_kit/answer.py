# SPDX-License-Identifier: Apache-2.0
"""What a step says: figures, facts, promises and bars, and the verdict.

    def run(answer): ...
    if __name__ == "__main__":
        answer.main(run, "what is asked, in one sentence")

* A *figure* is a number with a unit, and what the simulated card says for it.
  One that is a factor away from that differs.
* A *fact* is what the device does (yes or no, or words). One that is not what
  the simulated device does differs.
* A *promise* is the product's own; one that does not hold fails the step.
* A *bar* is a number to hold; one that is missed differs. On the simulated
  device bars are not judged: its sizes are small.

On the simulated device itself nothing may differ: there a step that says
something else of it than it does has failed. The file is written after each of
them, so that a step which is killed leaves what it knew.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import traceback

from tests.gpu_kit import place
from tests.gpu_kit import record

_CHILD_SECONDS = 480
_MARK = "kit answer: "  # before the JSON of a child


class NotHere(Exception):
    """This device or machine cannot run the step; says why."""


class Answer:
    """The JSON of one step, being written."""

    def __init__(self, device, asked, out=None, quick=False, of=None):
        self.device = device
        self.quick = quick
        self.of = of  # which part, for a file that is several steps
        self._out = out
        self._sentences = {record.FAILED: [], record.DIFFERS: []}
        self._not_here = None
        self._values = {"asked": asked, "figures": {}, "facts": {},
                        "promises": {}, "bars": {}, "tables": {}, "notes": []}
        if out is not None:
            self._save()

    @property
    def simulated(self):
        return self.device == "sim"

    @functools.cached_property
    def card(self):
        """The simulated card's figures (tests/simulator/cudasim/cards.h)."""
        with open(os.environ["KIT_CARD"], encoding="utf-8") as file:
            return json.load(file)

    def call_us(self, name):
        """Microseconds a CUDA call takes on the simulated card."""
        calls = self.card["calls_ns"]
        return calls.get(name, self.card["call_ns"]) / 1000

    def figure(self, name, value, unit, simulated=None, factor=1.5, floor=0):
        """`floor`: differences below that many units are none."""
        value = _rounded(value)
        entry = {"value": value, "unit": unit}
        if simulated is not None:
            entry["simulated"] = _rounded(simulated)
        self._values["figures"][name] = entry
        if simulated is not None and value is not None and _is_far(
                value, simulated, factor, floor):
            self._differs(f"{name}: {value} {unit} here, "
                          f"{_rounded(simulated)} on the simulated card")
        self._save()

    def fact(self, name, value, simulated):
        self._values["facts"][name] = {"value": value, "simulated": simulated}
        if value != simulated:
            self._differs(f"{name}: {_words(value)} here, "
                          f"{_words(simulated)} on the simulated device")
        self._save()

    def promise(self, name, holds, why=""):
        """`why`: what was seen instead, if it does not hold."""
        self._values["promises"][name] = bool(holds)
        if not holds:
            self.failed(f"{name}: no{': ' if why else ''}{why}")
        self._save()

    def bar(self, name, value, at_least=None, at_most=None):
        value = _rounded(value)
        held = ((at_least is None or value >= at_least)
                and (at_most is None or value <= at_most))
        words = (f"at least {at_least}" if at_most is None
                 else f"at most {at_most}")
        judged = not self.simulated
        self._values["bars"][name] = {
            "value": value, "bar": words, "held": held if judged else None}
        if judged and not held:
            self._differs(f"{name}: {value}, the bar is {words}")
        self._save()

    def table(self, name, rows):
        """A list of dicts with the same keys."""
        self._values["tables"][name] = rows
        self._save()

    def note(self, sentence):
        self._values["notes"].append(sentence)
        self._save()

    def differs(self, sentence):
        self._differs(sentence)
        self._save()

    def failed(self, sentence):
        self._sentences[record.FAILED].append(sentence)
        self._save()

    def not_here(self, sentence):
        self._not_here = sentence
        self._save()

    def child(self, function, *arguments, seconds=_CHILD_SECONDS, **settings):
        """Runs a function of this step's file in a process of its own.

        It is called with a fresh Answer, for `device` and `quick`, and the
        arguments, and returns a dict. What is given back is that dict, or
        {"died": ...}; "exit" and "stderr" are added.
        """
        module = sys.modules[function.__module__]
        name = module.__spec__.name if module.__spec__ else function.__module__
        command = [sys.executable, "-m", name, "--device", self.device,
                   "--child", function.__name__, json.dumps(arguments)]
        if self.quick:
            command.append("--quick")
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True,
                text=True, errors="replace", check=False, timeout=seconds,
                env={**os.environ, **settings})
        except subprocess.TimeoutExpired as error:
            return {"died": f"no end within {seconds} s", "exit": "timeout",
                    "stderr": (error.stderr or b"").decode(errors="replace")}
        found = {}
        for line in done.stdout.splitlines():
            if line.startswith(_MARK):
                found = json.loads(line[len(_MARK):])
        if not found:
            found = {"died": f"exit code {done.returncode}: "
                     + _last_lines(done.stderr)}
        return {**found, "exit": done.returncode, "stderr": done.stderr[-4000:]}

    def must(self, found):
        """The dict of a child that came to its end; raises if it did not."""
        if "died" in found:
            raise RuntimeError(f"a process of this step ended: {found['died']}")
        return found

    @property
    def verdict(self):
        if self._sentences[record.FAILED]:
            return record.FAILED
        if self._not_here is not None:
            return record.NOT_HERE
        return record.DIFFERS if self._sentences[record.DIFFERS] else record.OK

    def values(self):
        sentences = (self._sentences[record.FAILED]
                     + self._sentences[record.DIFFERS])
        if self._not_here is not None:
            sentences.append(self._not_here)
        kept = {key: value for key, value in self._values.items() if value}
        return {"verdict": self.verdict, "sentences": sentences, **kept}

    def _differs(self, sentence):
        # Of itself the simulated device cannot differ: the step is wrong.
        kind = record.FAILED if self.simulated else record.DIFFERS
        self._sentences[kind].append(sentence)

    def _save(self):
        if self._out is not None:
            record.write(self._out, self.values())


def _rounded(value):
    return round(value, 4) if isinstance(value, float) else value


def _is_far(value, simulated, factor, floor):
    if abs(value - simulated) <= floor:
        return False
    low, high = sorted((abs(value), abs(simulated)))
    return high > low * factor


def _words(value):
    return {True: "yes", False: "no"}.get(value, value) if isinstance(
        value, bool) else value


def _last_lines(text, count=6):
    """The end of what was said; before Python's list of its modules."""
    said = text.split("Extension modules")[0]
    return " | ".join([line for line in said.splitlines() if line][-count:])


def main(run, asked):
    """The command line of a step, or of a child of one."""
    parser = argparse.ArgumentParser(description=asked)
    parser.add_argument("--device", choices=("cuda", "sim"), required=True)
    parser.add_argument("--out")
    parser.add_argument("--of")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", nargs=2, metavar=("FUNCTION", "JSON"))
    parser.add_argument("--lifeline", action="store_true",
                        help="standard input ends with the kit")
    args = parser.parse_args()
    if args.child:
        _child(run, args)
        return
    if args.lifeline:
        place.end_with_the_kit()
    answer = Answer(args.device, asked, args.out, args.quick, args.of)
    try:
        run(answer)
    except NotHere as reason:
        answer.not_here(str(reason))
    except Exception as error:  # pylint: disable=broad-except
        traceback.print_exc()
        answer.failed(f"{type(error).__name__}: {error}")
    for sentence in answer.values()["sentences"]:
        print(sentence, flush=True)
    sys.stdout.flush()
    sys.exit(1 if answer.verdict == record.FAILED else 0)


def _child(run, args):
    name, arguments = args.child
    function = getattr(sys.modules[run.__module__], name)
    found = function(Answer(args.device, "", quick=args.quick),
                     *json.loads(arguments))
    print(_MARK + json.dumps(found), flush=True)
