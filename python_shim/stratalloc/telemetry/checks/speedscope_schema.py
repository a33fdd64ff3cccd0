# SPDX-License-Identifier: Apache-2.0
"""The schema of speedscope's file format, in our words: what its importer
needs. Other keys pass."""

_UNIT = {"enum": ["none", "nanoseconds", "microseconds", "milliseconds",
                  "seconds", "bytes"]}
_INDEX = {"type": "integer", "minimum": 0}
_PROFILE = {"name": {"type": "string"}, "unit": _UNIT,
            "startValue": {"type": "number"}, "endValue": {"type": "number"}}

SCHEMA = {
    "type": "object",
    "required": ["$schema", "shared", "profiles"],
    "properties": {
        "$schema": {
            "const": "https://www.speedscope.app/file-format-schema.json"},
        "name": {"type": "string"}, "exporter": {"type": "string"},
        "activeProfileIndex": {"type": "number"},
        "shared": {
            "type": "object", "required": ["frames"],
            "properties": {"frames": {"type": "array", "items": {
                "type": "object", "required": ["name"],
                "properties": {"name": {"type": "string"},
                               "file": {"type": "string"},
                               "line": {"type": "number"},
                               "col": {"type": "number"}}}}}},
        "profiles": {"type": "array", "items": {"oneOf": [
            {"type": "object",
             "required": ["type", *_PROFILE, "samples", "weights"],
             "properties": {**_PROFILE, "type": {"const": "sampled"},
                            "samples": {"type": "array", "items": {
                                "type": "array", "items": _INDEX}},
                            "weights": {"type": "array", "items": {
                                "type": "number"}}}},
            {"type": "object", "required": ["type", *_PROFILE, "events"],
             "properties": {**_PROFILE, "type": {"const": "evented"},
                            "events": {"type": "array", "items": {
                                "type": "object",
                                "required": ["type", "at", "frame"],
                                "properties": {
                                    "type": {"enum": ["O", "C"]},
                                    "at": {"type": "number"},
                                    "frame": _INDEX}}}}}]}}}}
