# SPDX-License-Identifier: Apache-2.0
"""pprof's profile: every number that names something names something."""

from stratalloc.telemetry.checks.findings import Findings, unzipped
from stratalloc.telemetry.exports.messages import messages


def check(path):
    kinds = messages("pprof")
    with open(path, "rb") as file:
        raw = file.read()
    if raw[:2] == b"\x1f\x8b":
        raw, wrong = unzipped(raw)
        if wrong:
            return [wrong]
    from google.protobuf.message import DecodeError

    profile = kinds["Profile"]()
    try:
        profile.ParseFromString(raw)
    except (DecodeError, ValueError, RecursionError) as error:
        return [f"it is no profile, or cut off: {str(error)[:200]}"]
    found = Findings()
    texts = len(profile.string_table)
    if not texts or profile.string_table[0]:
        found.add("its first text is not empty")
    if not profile.sample_type:
        found.add("it has no type of sample")

    def text(what, *indices):
        for index in indices:
            if not 0 <= index < texts:
                found.add(f"{what} names text {index} of {texts}")

    for one in profile.sample_type:
        text("a type of sample", one.type, one.unit)
    text("the profile", profile.default_sample_type, *profile.comment)
    functions = _ids(found, "function", profile.function)
    locations = _ids(found, "location", profile.location)
    mappings = _ids(found, "mapping", profile.mapping)
    for one in profile.function:
        text("a function", one.name, one.system_name, one.filename)
    for one in profile.location:
        if one.mapping_id and one.mapping_id not in mappings:
            found.add(f"location {one.id} names no mapping")
        for line in one.line:
            if line.function_id not in functions:
                found.add(f"location {one.id} names no function")
    for i, sample in enumerate(profile.sample):
        if len(sample.value) != len(profile.sample_type):
            found.add(f"sample {i} has {len(sample.value)} values for "
                      f"{len(profile.sample_type)} types")
        if any(one not in locations for one in sample.location_id):
            found.add(f"sample {i} names no location")
        if min(sample.value, default=0) < 0:
            found.add(f"sample {i} has a value below 0")
        for label in sample.label:
            text(f"sample {i}", label.key, label.str)
    return found.done()


def _ids(found, what, rows):
    seen = set()
    for one in rows:
        if not one.id or one.id in seen:
            found.add(f"{what} {one.id} is there twice, or is 0")
        seen.add(one.id)
    return seen
