# SPDX-License-Identifier: Apache-2.0
"""Snapshots shaped as torch 2.11's, made by hand: what its allocator would say
of a small program, on a machine that has no GPU."""

BASE = 0x7F00_0000_0000
MIB = 1 << 20


def frames(*lines):
    """Innermost first."""
    return [{"filename": file, "line": line, "name": name}
            for file, line, name in lines]


STACK = frames(("/p/net.py", 12, "forward"), ("/p/train.py", 40, "step"),
               ("/p/train.py", 99, "<module>"))
OTHER = frames(("/p/net.py", 15, "forward"), ("/p/train.py", 40, "step"),
               ("/p/train.py", 99, "<module>"))


def event(action, addr, size, time, stack=STACK, stream=0, pool=(0, 0), **more):
    return {"action": action, "addr": addr, "size": size, "stream": stream,
            "time_us": time, "frames": stack, "compile_context": "N/A",
            "user_metadata": "", "pool_id": pool, **more}


def block(address, size, requested, state="active_allocated", stack=STACK):
    return {"address": address, "size": size, "requested_size": requested,
            "state": state, "frames": stack}


def segment(address, size, blocks, expandable=False, stream=0, kind="large"):
    live = [b for b in blocks if b["state"] != "inactive"]
    return {"device": 0, "address": address, "total_size": size,
            "allocated_size": sum(b["size"] for b in live
                                  if b["state"] == "active_allocated"),
            "active_size": sum(b["size"] for b in live),
            "requested_size": sum(b["requested_size"] for b in live),
            "stream": stream, "segment_type": kind,
            "segment_pool_id": (0, 0), "is_expandable": expandable,
            "frames": STACK, "blocks": blocks}


def snapshot():
    """One block that was there before, one that is freed and one that waits
    for its stream; the last one is larger than its request rounded."""
    at = 1_700_000_000_000_000
    old, kept, waits = BASE, BASE + 4 * MIB, BASE + 32 * MIB
    return {
        "segments": [
            segment(BASE, 20 * MIB, [
                block(old, 4 * MIB, 4 * MIB - 100, stack=[]),
                block(kept, 2 * MIB, 2 * MIB - 7),
                block(kept + 2 * MIB, 14 * MIB, 0, "inactive", [])]),
            segment(waits, 6 * MIB, [
                block(waits, 6 * MIB, 5 * MIB + MIB // 2,
                      "active_pending_free", OTHER)], expandable=True)],
        "device_traces": [[
            event("alloc", kept, 2 * MIB - 7, at + 1, user_metadata="warm up"),
            event("alloc", kept + 2 * MIB, 3000, at + 2),
            event("free_requested", kept + 2 * MIB, 3000, at + 5),
            event("free_completed", kept + 2 * MIB, 3000, at + 5),
            event("segment_map", waits, 2 * MIB, at + 6, OTHER),
            event("segment_map", waits + 2 * MIB, 4 * MIB, at + 6, OTHER),
            event("alloc", waits, 5 * MIB + MIB // 2, at + 7, OTHER),
            event("oom", 0, 1 << 40, at + 8, device_free=17 * MIB),
            event("free_requested", waits, 5 * MIB + MIB // 2, at + 9, OTHER),
            event("snapshot", 0, 0, at + 10, [])]],
        "allocator_settings": {"expandable_segments": False,
                               "roundup_power2_divisions": {"1": 0}},
        "external_annotations": [
            {"device": 0, "name": "## forward ##", "stage": "START",
             "time_us": at + 3},
            {"device": 0, "name": "## forward ##", "stage": "END",
             "time_us": at + 8}],
    }
