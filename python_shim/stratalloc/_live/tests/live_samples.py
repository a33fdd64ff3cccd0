# SPDX-License-Identifier: Apache-2.0
"""Samples of a process that never was, for tests of who shows them."""

MIB = 1 << 20


def layer(owner, size, **more):
    return {"owner": owner, "bytes": size, "device": size, "host": 0, "disk": 0,
            "peak": size, "moved": 0, "categories": {"parameter": size},
            **more}


def device(**more):
    return {
        "device": 0, "name": "NVIDIA H100 80GB HBM3", "uuid": None,
        "capacity": 64 * MIB, "limit": 48 * MIB, "allocated": 36 * MIB,
        "allocated_peak": 40 * MIB, "reserved": 48 * MIB,
        "reserved_peak": 48 * MIB, "live": 44 * MIB, "device_bytes": 36 * MIB,
        "host_bytes": 8 * MIB, "disk_bytes": 0,
        "moved": {"out": 0, "in": 0, "to_disk": 0, "from_disk": 0},
        "stalls": 0, "stall_ns": 0, "ooms": 0,
        "layers": [layer("GPT.head", 20 * MIB, device=12 * MIB, host=8 * MIB,
                         peak=21 * MIB, moved=100 * MIB),
                   layer("GPT.layers.0", 16 * MIB, peak=30 * MIB),
                   layer("step", 0, device=0, peak=40 * MIB,
                         moved=900 * MIB, categories={})],
        "other_layers": {"count": 3, "bytes": 8 * MIB}, **more}


def sample(at=0.0, *devices, **more):
    """`at`: seconds of the process's clock."""
    return {
        "version": 1, "pid": 4242, "command": "train.py --lr 1",
        "stratalloc": "0", "torch": "2.11.0", "simulated": "",
        "level": "counters", "clock_ns": int(at * 1e9),
        "devices": list(devices or [device()]),
        "host": {"used": 8 * MIB, "budget": 1024 * MIB},
        "disk": {"used": 0, "budget": 0}, "events": None, **more}


def later(seconds=2.0, **more):
    """(a sample, the one `seconds` after it)."""
    return sample(10.0), sample(10.0 + seconds, device(
        moved={"out": 128 * MIB, "in": 64 * MIB, "to_disk": 2 * MIB,
               "from_disk": 0},
        stalls=7, stall_ns=int(5e8),
        layers=[layer("GPT.head", 20 * MIB, device=12 * MIB, host=8 * MIB,
                      peak=21 * MIB, moved=110 * MIB),
                layer("GPT.layers.0", 16 * MIB, peak=30 * MIB),
                layer("step", 0, device=0, peak=40 * MIB, moved=924 * MIB,
                      categories={})], **more))
