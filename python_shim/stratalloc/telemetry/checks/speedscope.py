# SPDX-License-Identifier: Apache-2.0
"""speedscope: its schema, and what its importer needs besides."""

from stratalloc.telemetry.checks.findings import Findings, load_json
from stratalloc.telemetry.checks.speedscope_schema import SCHEMA
from stratalloc.telemetry.errors import MissingPackageError


def check(path):
    try:
        import jsonschema
    except ImportError as error:
        raise MissingPackageError("checking speedscope's schema", "jsonschema",
                                  error) from None
    value, wrong = load_json(path)
    if wrong:
        return wrong
    found = Findings()
    try:
        for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(value):
            where = "/".join(map(str, error.absolute_path))
            found.add(f"schema: {where}: {error.message[:200]}")
    except RecursionError:
        found.add("schema: it is nested too deeply")
    if found:
        return found.done()
    frames = value["shared"]["frames"]
    _frames(found, frames)
    for i, profile in enumerate(value["profiles"]):
        where = f"profile {i} ({profile['name'][:80]})"
        if profile["endValue"] < profile["startValue"]:
            found.add(f"{where} ends before it starts")
        (_sampled if profile["type"] == "sampled" else _evented)(
            found, where, profile, len(frames))
    return found.done()


def _frames(found, frames):
    seen = set()
    for i, frame in enumerate(frames):
        key = (frame["name"], frame.get("file"), frame.get("line"),
               frame.get("col"))
        if key in seen:
            found.add(f"frame {i} ({frame['name'][:80]!r}) is there twice, and "
                      "will not be merged with the other")
        seen.add(key)


def _sampled(found, where, profile, frames):
    samples, weights = profile["samples"], profile["weights"]
    if len(samples) != len(weights):
        found.add(f"{where} has {len(samples)} samples and {len(weights)} "
                  "weights: it will not open")
    for weight in weights:
        if weight < 0:
            found.add(f"{where} has the weight {weight}: it will not open")
        elif weight == 0:
            found.add(f"{where} has a weight 0, which is left out")
    for sample in samples:
        if any(frame >= frames for frame in sample):
            found.add(f"{where} names a frame that is not there")
        if not sample:
            found.add(f"{where} has a sample without a frame")
    length = profile["endValue"] - profile["startValue"]
    if sum(weights) != length:
        found.add(f"{where} is {length} long, and its weights add up to "
                  f"{sum(weights)}")


def _evented(found, where, profile, frames):
    last, inside = profile["startValue"], []
    for i, event in enumerate(profile["events"]):
        if event["frame"] >= frames:
            found.add(f"{where} names a frame that is not there")
        if event["at"] < last:
            found.add(f"{where}: event {i} is at {event['at']}, before "
                      f"{last}: it will not open")
        last = max(last, event["at"])
        if event["type"] == "O":
            inside.append(event["frame"])
        elif not inside or inside.pop() != event["frame"]:
            found.add(f"{where}: event {i} closes a frame that is not the last "
                      "one opened: it will not open")
    if inside:
        found.add(f"{where} leaves {len(inside)} frames open")
    if last > profile["endValue"]:
        found.add(f"{where} has events behind its end")
