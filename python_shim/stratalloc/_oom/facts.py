# SPDX-License-Identifier: Apache-2.0
"""Facts: what the core, the driver and Python know at an out of memory.

Read once, on the thread that was refused, while the listener runs (hook.py):
a dict of ints, texts, lists and dicts, bytes throughout, which is what the
report and its JSON are made of. No tensor is touched and no lock of ours is
waited for; what cannot be read is None or empty. Raises RuntimeError if the
core or the driver does not answer.
"""

import os
import sys

from stratalloc._native import core as _core
from stratalloc._native import state as _state
from stratalloc._rendering.table import natural
from stratalloc._reports import diff as _diff

_HOLES = 50  # the largest; the rest as a sum
_TENSORS = 200


def read(told, site):
    """The facts of a Refusal pointer; `site`: the line of user code, or
    None."""
    refusal, device = told.contents, told.contents.device
    said = _core.refusal(told)
    report = _core.report(device)
    parts = said["parts"]
    holes = parts["held"].pop("holes")
    held = _core.held(device)["rows"]
    config = _state.active
    return {
        "device": device,
        "kind": "operator" if refusal.is_operator else "block",
        "operator": _text(refusal.name),
        "bytes": refusal.bytes,
        "rounded": said["rounded"],
        "stream": refusal.stream,
        "owner": said["owner"],
        "category": said["category"],
        "lifetime": said["lifetime"],
        "site": site,
        "message": _text(refusal.message),
        "parts": parts,
        "processes": said["processes"],
        "own_pid": os.getpid(),
        "explanation": said.get("explanation"),
        "staying": said["staying"],
        "blocks": said["blocks"],
        "holes": holes[:_HOLES],
        "holes_left_out": {"count": len(holes[_HOLES:]),
                           "free": sum(hole["free"]
                                       for hole in holes[_HOLES:])},
        "stays": report["stays"],
        "pinned": report["pinned"],
        "limits": report["limits"],
        "tiers": report["tiers"],
        "why_no_tiering": report["why_no_tiering"],
        "holders": _holders(held),
        "tensors": _tensors(device),
        "changed": _changed(device, held),
        "settings": {} if config is None else config.to_dict(),
    }


def _text(value):
    return None if value is None else value.decode("utf-8", "replace")


def _holders(rows):
    """[{"owner", "category", "device", "host", "disk"}], of what is live."""
    found = [{key: row[key] for key in ("owner", "category", "blocks",
                                        "device", "host", "disk")}
             for row in rows if row["live"]]
    return sorted(found, key=lambda row: (
        -row["device"], natural(row["owner"]), row["category"]))


def _tensors(device):
    """The largest tensors with names on the device."""
    if "torch" not in sys.modules:
        return []
    from stratalloc._reports import holders

    found = []
    try:
        for owner, name, category, size, tier in holders._tensors(device):
            if tier == "device":
                found.append({"name": f"{owner}.{name}", "bytes": size,
                              "category": category})
    except Exception:  # pylint: disable=broad-exception-caught
        # A module of the program that does not answer hides no report.
        return found
    return sorted(found, key=lambda row: (
        -row["bytes"], natural(row["name"])))[:_TENSORS]


def _changed(device, rows):
    """What everybody holds more than at the newest mark(); None without one."""
    mark = _diff.last.get(device)
    if mark is None:
        return None
    now = _diff.by_owner(rows)
    changed = [{"owner": owner, "category": category,
                "bytes": now.get((owner, category), (0, 0))[0]
                - mark.held.get((owner, category), (0, 0))[0]}
               for owner, category in now.keys() | mark.held.keys()]
    return {"mark": mark.name,
            "rows": sorted((row for row in changed if row["bytes"]),
                           key=lambda row: (-row["bytes"],
                                            natural(row["owner"]),
                                            row["category"]))}
