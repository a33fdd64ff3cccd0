# SPDX-License-Identifier: Apache-2.0
"""TensorBoard's event file: records are whole, steps and times do not fall, a
step has each tag once, and what it says of memory can be."""

import math
import struct

from stratalloc.telemetry import model
from stratalloc.telemetry.checks.findings import Findings
from stratalloc.telemetry.errors import MissingPackageError

_VERSION = "brain.Event:2"
_HEAD, _CHECK = struct.Struct("<QI"), struct.Struct("<I")
_CATEGORIES = frozenset(f"memory/{name}(GiB)" for name in model.CATEGORIES)
_FLOAT = 1 + 1e-5  # values have 24 bits


def check(path):
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import (
            masked_crc32c)
    except ImportError as error:
        raise MissingPackageError("TensorBoard", "tensorboard",
                                  error) from None
    from google.protobuf.message import DecodeError

    with open(path, "rb") as file:
        raw = file.read()
    found, steps, step, time = Findings(), {}, 0, 0.0
    if not raw:
        found.add("it is empty")
    for i, record in enumerate(_records(found, raw, masked_crc32c)):
        event = Event()
        try:
            event.ParseFromString(record)
        except (DecodeError, ValueError, RecursionError) as error:
            found.add(f"record {i} is no event: {str(error)[:200]}")
            break
        if not i and event.file_version != _VERSION:
            return [f"its first record does not say {_VERSION}"]
        if event.step < step or not event.wall_time >= time:
            found.add(f"record {i} is before the last one")
        step, time = max(step, event.step), max(time, event.wall_time)
        for value in event.summary.value:
            _value(found, i, value, steps.setdefault(event.step, {}))
    for step, told in steps.items():
        _sums(found, step, told)
    return found.done()


def _records(found, raw, check_of):
    at = 0
    while at < len(raw):
        held = raw[at:at + _HEAD.size]
        if len(held) < _HEAD.size:
            found.add(f"it ends in the middle of a record, at byte {at}")
            return
        length, sum_of_length = _HEAD.unpack(held)
        if check_of(held[:8]) != sum_of_length:
            found.add(f"the record at byte {at} has a length that is damaged")
            return
        begin = at + _HEAD.size
        at = begin + length + _CHECK.size
        if at > len(raw):
            found.add(f"it ends in the middle of a record, at byte {len(raw)}")
            return
        record = raw[begin:begin + length]
        if _CHECK.unpack(raw[begin + length:at])[0] != check_of(record):
            found.add(f"the record at byte {begin} is damaged")
            return
        yield record


def _value(found, i, value, told):
    if not value.tag:
        found.add(f"record {i} is of no tag")
    elif value.tag in told:
        found.add(f"step has {value.tag[:80]!r} twice, at record {i}")
    elif value.HasField("simple_value"):
        number = told[value.tag] = value.simple_value
        most = 100 * _FLOAT if "(%)" in value.tag else math.inf
        if not (math.isfinite(number) and 0 <= number <= most):
            found.add(f"record {i} says {number} of {value.tag[:80]!r}")
    elif not value.WhichOneof("value"):
        found.add(f"record {i} says nothing of {value.tag[:80]!r}")


def _sums(found, step, told):
    """What categories hold as a step ends is no more than the most that was
    active in it."""
    held = {}
    for tag, number in told.items():
        name, _, device = tag.partition("/device ")
        if name in _CATEGORIES:
            held[device] = held.get(device, 0.0) + number
    for device, size in held.items():
        tag = "memory/max_active(GiB)" + (f"/device {device}" if device else "")
        if size > told.get(tag, math.inf) * _FLOAT:
            found.add(f"categories of step {step} hold {size} GiB, more than "
                      f"its {tag}")
