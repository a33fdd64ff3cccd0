# SPDX-License-Identifier: Apache-2.0
"""Damage for fuzzers: of any bytes, and of recordings whose checksums still
hold, so that what reads them has to look at what they say."""

import copy
import json
import pickle
import struct

import numpy as np

import made_recordings
from stratalloc.telemetry import model

_INTERESTING = [b"\x00", b"\xff", b"\xff\xff\xff\xff", b"\x7f", b"\x80", b"}",
                b"]", b"[", b"{", b'"', b",", b"-", b"9" * 25, b"1e999",
                b"null", b"\\u0000", b"\xed\xa0\x80", b"\n", b".", b"(", b"u",
                b"r\xff\xff\xff\x7f", b"\x95", b"\x8c\xff", b"h\x00", b"2"]
HOSTILE = (None, -1, 0, 1 << 31, 1 << 63, 1 << 70, 1e308, "x", "", [], {}, [[]],
           [[1, "x"]], [[-1, "x"]], [[1 << 40, "x"]], [["x", 1]], True,
           {"a": []}, "\0", "\ud800")

# Of keys that nobody writes, and of some that are looked for.
_ODD = (*HOSTILE, 10**1000, -10**30, 1e300, float("inf"), float("-inf"),
        [10**1000], {"a": 10**1000}, {"a": [{"b": [1]}]}, [float("inf")],
        {"a": float("-inf")}, [[[[1]]]], "9" * 5000)
_KEYS = ("odd", "", "\ud800", "command", "torch", "stratalloc", "card",
         "handle_bytes", "trace_alloc_max_entries", "PYTORCH_CUDA_ALLOC_CONF",
         "settings")


def damaged(raw, chance):
    """The bytes, changed in one to eight places."""
    raw = bytearray(raw)
    for _ in range(chance.randrange(1, 9)):
        at = chance.randrange(len(raw) + 1)
        what = chance.randrange(6)
        some = raw[at:at + chance.randrange(1, 40)]
        if what == 0 and at < len(raw):
            raw[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            raw[at:at + len(some)] = b""
        elif what == 2:
            raw[at:at] = some * chance.randrange(1, 20)
        elif what == 3:
            raw[at:at + chance.randrange(8)] = chance.choice(_INTERESTING)
        elif what == 4:
            other = chance.randrange(len(raw) + 1)
            raw[other:other + len(some)] = some
        elif chance.random() < .3:
            del raw[at:]
    return bytes(raw)


def place(head, chance):
    """A value from HOSTILE somewhere in the head."""
    at = head
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return
        key = chance.choice(keys)
        inside = at[key]
        if isinstance(inside, (dict, list)) and inside and chance.random() < .8:
            at = inside
            continue
        at[key] = copy.deepcopy(chance.choice(HOSTILE))
        return


def odd(raw, chance):
    """The bytes of a recording or of a snapshot of torch, whole but for keys
    with odd values, times before it began and sizes that add up to too much."""
    if raw.startswith(b"STRATREC"):
        head, events = parts(raw)
        head = json.loads(head)
        about = head.setdefault("about", {})
        _add(chance, head, about, about.setdefault("settings", {}))
        if len(events) and chance.random() < .3:
            column, value = chance.choice((("time", -1), ("time", -1 << 40),
                                           ("bytes", (1 << 62) - 1)))
            events[column][chance.sample(range(len(events)), 2)] = value
        return made_recordings.file_of(_as_json(head), events)
    coder = pickle if raw[:1] == b"\x80" else json
    value = coder.loads(raw)
    events = [event for trace in value["device_traces"] for event in trace]
    _add(chance, value, chance.choice(events),
         value.setdefault("allocator_settings", {}))
    if chance.random() < .3:
        for event in chance.sample(events, 3):
            event["size"] = (1 << 62) - 1
    return pickle.dumps(value, 4) if coder is pickle else _as_json(value)


def _add(chance, *places):
    """Keys with odd values in the last of the places (dicts) or another."""
    for _ in range(chance.randint(1, 3)):
        at = chance.choice((*places, places[-1]))
        at[chance.choice(_KEYS)] = copy.deepcopy(chance.choice(_ODD))


def _as_json(value):
    """Of what is not finite Python makes a word, and others a number."""
    return json.dumps(value).replace("Infinity", "1e999").encode()


def recording(raw, chance):
    """The bytes of a recording, damaged where its sections are, or in them."""
    head, events = parts(raw)
    how = chance.random()
    if how < .1:
        return damaged(raw, chance)
    if how < .4:
        head = json.loads(head)
        for _ in range(chance.randint(1, 2)):
            place(head, chance)
    elif how < .5:
        head = damaged(head, chance)
    if len(events) and (how > .5 or chance.random() < .3):
        _turn(events, chance)
    more = [made_recordings.section(b"MORE", head[:9])] if isinstance(
        head, bytes) and chance.random() < .1 else []
    return made_recordings.file_of(head, events, *more)


def parts(raw):
    """(the head's bytes, events) of a recording."""
    found, at = {}, 16
    while raw[at:at + 4] != b"END.":
        tag, _, length = struct.unpack_from("<4sIQ", raw, at)
        found[tag] = raw[at + 16:at + 16 + length]
        at += 16 + length + -length % 8
    return found[b"HEAD"], np.frombuffer(found[b"EVNT"], model.EVENT).copy()


def _turn(events, chance):
    """Values of columns, rows in other places, or rows that are gone."""
    for _ in range(chance.randint(1, 3)):
        row = chance.randrange(len(events))
        column = chance.choice(model.EVENT.names)
        most = int(np.iinfo(events[column].dtype).max)
        least = int(np.iinfo(events[column].dtype).min)
        what = chance.random()
        if what < .5:
            events[column][row] = chance.choice(
                (0, 1, 2, least, max(least, -1), most, most - 1, most // 2,
                 most // 2 + 1, chance.randrange(most), 1 << chance.randrange(
                     most.bit_length())))
        elif what < .7:
            events[row] = events[chance.randrange(len(events))]
        elif what < .85:
            events["kind"][row] = chance.randrange(20)
        else:
            events["device"][row] = chance.randrange(16)
