# SPDX-License-Identifier: Apache-2.0
"""Chrome's trace JSON: slices nest, counters are numbers, pairs are whole."""

from stratalloc.telemetry.checks.findings import (Findings, is_number,
                                                  load_json)

_PHASES = frozenset("BEXiICMbensftP")


def check(path):
    value, wrong = load_json(path)
    if wrong:
        return wrong
    events = value.get("traceEvents") if isinstance(value, dict) else value
    if not isinstance(events, list):
        return ["it has no list 'traceEvents'"]
    found, tracks, pairs = Findings(), {}, {}
    for i, event in enumerate(events):
        what = _wrong(event)
        if what:
            found.add(f"event {i} {what}")
            continue
        phase, track = event["ph"], (str(event["pid"]), str(event.get("tid")))
        if phase in "BE":
            _nest(found, i, event, tracks.setdefault(track, []))
        elif phase in "be":
            _pair(found, i, event, pairs)
        elif phase == "C":
            args = event.get("args")
            if not isinstance(args, dict) or not args or not all(
                    map(is_number, args.values())):
                found.add(f"event {i} is a counter without numbers")
    for track, inside in tracks.items():
        if inside:
            found.add(f"thread {track[1]} of process {track[0]} leaves "
                      f"{len(inside)} slices open")
    if any(pairs.values()):
        found.add(f"{sum(map(bool, pairs.values()))} asynchronous slices do "
                  "not end")
    return found.done()


def _wrong(event):
    if not isinstance(event, dict):
        return "is no dict"
    if not isinstance(event.get("ph"), str) or event["ph"] not in _PHASES:
        return f"has the phase {str(event.get('ph'))[:20]!r}"
    if event["ph"] != "E" and not isinstance(event.get("name"), str):
        return "has no name"
    if "pid" not in event or not is_number(event.get("ts", 0 if event["ph"]
                                                     == "M" else None)):
        return "has no pid or no ts"
    if event.get("ts", 0) < 0:
        return "is before the beginning"
    if event["ph"] == "X" and not (is_number(event.get("dur"))
                                   and event["dur"] >= 0):
        return "is a slice without a duration"
    return None


def _nest(found, i, event, inside):
    if event["ph"] == "B":
        if inside and event["ts"] < inside[-1][1]:
            found.add(f"event {i} begins before the slice around it")
        inside.append((event["name"], event["ts"]))
    elif not inside:
        found.add(f"event {i} ends a slice that did not begin")
    else:
        name, begun = inside.pop()
        if event.get("name", name) != name:
            found.add(f"event {i} ends {str(event['name'])[:80]!r} inside of "
                      f"{name[:80]!r}")
        if event["ts"] < begun:
            found.add(f"event {i} ends before it begins")


def _pair(found, i, event, pairs):
    key = (str(event.get("cat")), str(event.get("id")), str(event["pid"]))
    if event["ph"] == "b":
        pairs[key] = pairs.get(key, 0) + 1
    elif not pairs.get(key):
        found.add(f"event {i} ends an asynchronous slice that did not begin")
    else:
        pairs[key] -= 1
