# SPDX-License-Identifier: Apache-2.0
"""What an answer must look like before anybody reads it: sample.take()'s dict.

Whoever answers may be broken, of another release, or no stratalloc. Keys that
are not known are let through; those that are, have the type that pages and
sums of them need. Standard library only.
"""

_LARGEST = 1 << 64  # no counter of 64 bits is more


def wrong(sample):
    """Where a sample is none, as in "devices[0].moved.out"; None: nowhere."""
    return _wrong(sample, _SAMPLE, "")


def _wrong(value, form, where):
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return where or "the answer"
        for key, of in form.items():
            inner = f"{where}.{key}" if where else key
            found = (inner if key not in value
                     else _wrong(value[key], of, inner))
            if found is not None:
                return found
        return None
    if isinstance(form, list):
        if not isinstance(value, list):
            return where
        for at, one in enumerate(value):
            found = _wrong(one, form[0], f"{where}[{at}]")
            if found is not None:
                return found
        return None
    return None if form(value) else where


def _text(value):
    return isinstance(value, str)


def _number(value):
    # No bool, which Python counts among the numbers.
    return type(value) is int and abs(value) < _LARGEST


def _numbers(value):
    return isinstance(value, dict) and all(map(_number, value.values()))


def _or_none(form):
    return lambda value: value is None or _wrong(value, form, "x") is None


def _of_numbers(*keys):
    return dict.fromkeys(keys, _number)


_LAYER = {
    "owner": _text, "categories": _numbers, "peak": _or_none(_number),
    "moved": _or_none(_number),
    **_of_numbers("bytes", "device", "host", "disk")}

_DEVICE = {
    "name": _text, "uuid": _or_none(_text),
    "moved": _of_numbers("out", "in", "to_disk", "from_disk"),
    "layers": [_LAYER], "other_layers": _of_numbers("count", "bytes"),
    **_of_numbers("device", "capacity", "limit", "allocated", "reserved",
                  "host_bytes", "disk_bytes", "stalls", "stall_ns", "ooms")}

_SAMPLE = {
    "command": _text, "simulated": _text, "level": _text,
    "devices": [_DEVICE], **_of_numbers("pid", "clock_ns"),
    "host": _or_none(_of_numbers("used", "budget")),
    "disk": _or_none(_of_numbers("used", "budget")),
    "events": _or_none(_of_numbers("recorded", "lost"))}
