# SPDX-License-Identifier: Apache-2.0
"""What is said through the socket: one line of request, one of JSON, the end.

Version 1. The request is `sample 1`; the answer is an object with `version` and
either what _live/sample.py says or `error`, a sentence. Read-only: there is no
other request. Both lines have a bound, so that neither side takes memory
because the other says so.
"""

import json

VERSION = 1
REQUEST = b"sample 1\n"
LONGEST_REQUEST = 64  # bytes
LONGEST_ANSWER = 1 << 20


def line(values):
    """The bytes of an answer."""
    text = json.dumps({"version": VERSION, **values}, separators=(",", ":"))
    made = text.encode() + b"\n"
    if len(made) > LONGEST_ANSWER:
        return error("the sample is longer than an answer may be")
    return made


def error(sentence):
    return line({"error": sentence})
