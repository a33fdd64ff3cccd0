# SPDX-License-Identifier: Apache-2.0
"""From three phases to one result: the JSON of the demo and its faults.

Pure functions: dicts and bytes in, a dict and a list of sentences out.
"""

import array


def combine(settings, native, ours, cpu, ours_bytes, cpu_bytes):
    """The demo's JSON (see README of python_shim) and a list of faults."""
    report = ours.get("report") or {}
    handles = report.get("handles") or {}
    counters = ours.get("counters") or {}
    tiers = report.get("tiers") or {}
    values = {
        "device": settings["device"],
        "simulated": settings["device"] == "sim",
        "native_error": native.get("error"),
        "native_error_type": native.get("error_type"),
        "error": ours.get("error"),
        "error_type": ours.get("error_type"),
        "max_abs_diff_vs_cpu": max_abs_diff(ours_bytes, cpu_bytes),
        "sentences": ours.get("sentences", 0),
        "queries": ours.get("queries", []),
        "queries_equal_cpu": same_answers(ours, cpu),
        "bytes_evicted": tiers.get("bytes_evicted", 0),
        "bytes_restored": tiers.get("bytes_restored", 0),
        "bytes_to_disk": tiers.get("bytes_to_disk", 0),
        "bytes_from_disk": tiers.get("bytes_from_disk", 0),
        "peak_allocated": ours.get("peak_allocated", 0),
        "peak_reserved": ours.get("peak_reserved", 0),
        "device_capacity": ours.get("device_capacity", 0),
        "parameter_bytes": ours.get("parameter_bytes",
                                    native.get("parameter_bytes", 0)),
        "host_budget": ours.get("host_budget", settings["host_budget"]),
        # What evicted memory used, and what was pinned for it.
        **{key: tiers.get(key, 0) for key in (
            "host_used", "host_peak", "host_reserved", "host_reserved_peak")},
        "bridged_ops": counters.get("bridged_ops", 0),
        "launches_without_twin": counters.get("launches_without_twin", 0),
        "last_missing_twin": counters.get("last_missing_twin", ""),
        "refused_calls": counters.get("refused_calls", 0),
        "refused_names": counters.get("refused_names", ""),
        "violations": counters.get("violations", 0),
        "device_ptrs_outside_arena": counters.get("storages_outside", 0),
        "restored_before_use": handles.get("restored_before_use", 0),
        "seconds": {"native": native.get("seconds"),
                    "stratalloc": ours.get("seconds"),
                    "cpu": cpu.get("seconds")},
        # Modelled, not measured; {} unless a card or a profile was given.
        "virtual": ours.get("virtual") or {},
        "layers": report.get("layers", []),
        "report": {key: value for key, value in report.items()
                   if key != "layers"},
    }
    values["faults"] = faults(values, native, cpu)
    values["ok"] = not values["faults"]
    return values


def max_abs_diff(left, right):
    """Largest difference of two float32 vectors; None if not comparable."""
    if not left or len(left) != len(right):
        return None
    if left == right:
        return 0.0  # also true for equal NaNs, which same_answers would show
    worst = 0.0
    for a, b in zip(array.array("f", left), array.array("f", right)):
        difference = abs(a - b)
        if difference != difference:
            return None  # NaN: there is no distance to a number
        worst = max(worst, difference)
    return worst


def same_answers(ours, cpu):
    def names(phase):
        return [[answer["sentence"] for answer in query["answers"]]
                for query in phase.get("queries", [])]

    return bool(names(cpu)) and names(ours) == names(cpu)


def faults(values, native, cpu):
    """What went wrong, one sentence each; empty = the demo is right."""
    found = []
    simulated = values["simulated"]
    if cpu.get("error"):
        found.append(f"the CPU run failed: {cpu['error']}")
    if values["error"]:
        found.append(f"the run under stratalloc failed: {values['error']}")
        return found
    if native.get("error_type") not in (None, "torch.OutOfMemoryError"):
        found.append("the native run failed with something else than "
                     f"OutOfMemoryError: {native['error']}")
    difference = values["max_abs_diff_vs_cpu"]
    if difference is None:
        found.append("the embeddings cannot be compared with the CPU's")
    elif difference > 0 and simulated:
        found.append("bytes differ: embeddings are up to "
                     f"{difference:g} away from the CPU's")
    elif difference > 1e-3:
        found.append(f"embeddings are up to {difference:g} away from the "
                     "CPU's, more than rounding explains")
    if not values["queries_equal_cpu"]:
        found.append("the answers differ from the CPU's")
    if values["launches_without_twin"]:
        found.append(f"{values['launches_without_twin']} kernel launches had "
                     "no host twin (last: "
                     f"{values['last_missing_twin'] or 'unnamed'})")
    if values["refused_calls"]:
        found.append(f"{values['refused_calls']} calls were refused by the "
                     f"simulated device: {values['refused_names']}")
    if values["device_ptrs_outside_arena"]:
        found.append(f"{values['device_ptrs_outside_arena']} CUDA storages "
                     "lay outside the allocator's reservation")
    if values["violations"]:
        found.append(f"the simulated device saw {values['violations']} "
                     "violations of CUDA's rules")
    if simulated and not values["bridged_ops"]:
        found.append("no operator ran on the simulated device")
    if (values["parameter_bytes"] > values["device_capacity"]
            and not values["restored_before_use"]):
        found.append("the model is larger than the GPU, yet nothing was "
                     "restored before use")
    if values["host_reserved_peak"] > values["host_budget"]:
        found.append(f"{values['host_reserved_peak']} bytes of host memory "
                     "were pinned, "
                     f"above its budget of {values['host_budget']}")
    return found
