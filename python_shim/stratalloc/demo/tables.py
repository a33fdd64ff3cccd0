# SPDX-License-Identifier: Apache-2.0
"""The demo's tables: per layer and per tier, from the allocator's report."""

import re

from stratalloc.sizes import format_size

_MOVED = ("evicted", "restored", "to_disk", "from_disk")
_SUMMED = ("live", "peak", "device", "host", "disk", "stalls",
           "stall_ns") + _MOVED


def group(owner):
    """The layer an owner belongs to: its path up to the first number.

    "BertModel.encoder.layer.3.attention.self.query" -> "encoder.layer.3";
    without a number the last name of the path.
    """
    parts = re.split(r"[./]", owner)
    for index, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[1 if index > 2 else 0:index + 1])
    return parts[-1]


def grouped(rows):
    """[(name, sums)] of the rows of a report, in order of appearance."""
    groups = {}
    for row in rows:
        sums = groups.setdefault(group(row["owner"]), dict.fromkeys(_SUMMED, 0))
        for key in _SUMMED:
            sums[key] += row.get(key, 0)
    return [(name, sums) for name, sums in groups.items()
            if sums["peak"] or sums["live"]]


def _table(title, **more):
    # Here, so that _command.console() is the one to miss it.
    from rich import box
    from rich.table import Table

    return Table(title=title, box=box.SIMPLE_HEAD, title_justify="left",
                 pad_edge=False, **more)


def layers(values):
    table = _table("per layer, in MiB", collapse_padding=True)
    table.add_column("owner", no_wrap=True)
    for name in ("live", "peak", "GPU/host/disk %", "out", "in", "to disk",
                 "from disk", "stalls (ms)"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, sums in grouped(values["layers"]):
        table.add_row(name, mebibytes(sums["live"]), mebibytes(sums["peak"]),
                      where(sums), *(mebibytes(sums[key]) for key in _MOVED),
                      stalls(sums))
    return table


def mebibytes(value):
    """One decimal, so that columns line up; "-" for nothing."""
    return f"{value / (1 << 20):.1f}" if value else "-"


def where(sums):
    """Shares of the live bytes on the three tiers: "40/60/0"."""
    sizes = [sums[key] for key in ("device", "host", "disk")]
    if not any(sizes):
        return "-"
    return "/".join(f"{100 * size / sum(sizes):.0f}" for size in sizes)


def stalls(sums):
    """How often an operator waited for this layer, and how long in all."""
    if not sums["stalls"]:
        return "-"
    return f"{sums['stalls']} ({sums['stall_ns'] / 1e6:.0f})"


def tiers(values):
    table = _table("per tier")
    table.add_column("tier")
    for name in ("now", "peak", "limit", "bytes in", "bytes out"):
        table.add_column(name, justify="right")
    now = {key: sum(row.get(key, 0) for row in values["layers"])
           for key in ("device", "host", "disk")}
    report = values["report"]
    quota = (report.get("config") or {}).get("disk_budget", 0)
    mode = (report.get("tiers") or {}).get("disk_mode", "off")
    table.add_row("GPU (simulated)" if values["simulated"] else "GPU",
                  format_size(now["device"]),
                  format_size(values["peak_allocated"]),
                  format_size(values["device_capacity"]),
                  format_size(values["bytes_restored"]),
                  format_size(values["bytes_evicted"]))
    table.add_row("host, in use", format_size(values["host_used"]),
                  format_size(values["host_peak"]),
                  format_size(values["host_budget"]), "-", "-")
    table.add_row("host, pinned", format_size(values["host_reserved"]),
                  format_size(values["host_reserved_peak"]),
                  format_size(values["host_budget"]), "-", "-")
    table.add_row(f"disk, {mode.split(',')[0]}", format_size(now["disk"]), "-",
                  format_size(quota),
                  format_size(values["bytes_to_disk"]),
                  format_size(values["bytes_from_disk"]))
    return table
