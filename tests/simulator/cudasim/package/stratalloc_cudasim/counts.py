# SPDX-License-Identifier: Apache-2.0
"""What the device counted, refused and punished, and what its clock says.

Readable at any time, from any thread; of a process without a device nothing.
"""

import ctypes
import json

from stratalloc_cudasim import device


def counters():
    """What the simulated device counted; {} if none is loaded."""
    state = device.current()
    if state is None:
        return {}
    sim = state.driver
    return {
        "capacity": sim.cudasim_capacity(0),
        "peak_used": max(sim.cudasim_peak_used(index)
                         for index in range(state.devices)),
        "bridged_ops": sim.cudasim_bridged_ops(),
        "launches_with_twin": sim.cudasim_launches_with_twin(),
        # Launches that had their pointers checked and computed nothing.
        "launches_checked": sim.cudasim_launches_checked(),
        "launches_without_twin": sim.cudasim_launches_without_twin(),
        "last_missing_twin": _text(sim.cudasim_last_missing_twin),
        # Calls of what the simulated device does not have.
        "refused_calls": sim.cudasim_refused_calls(),
        "refused_names": _text(sim.cudasim_refused_names),
        "violations": sim.cudasim_violation_count(),
        # CUDA storages the operators met outside our reservation.
        "storages_outside": (
            state.bridge.cudasim_bridge_storages_outside()
            if state.bridge else 0),
    }


def calls():
    """Calls of CUDA so far, of every name; 0 if no device is loaded."""
    driver = device.driver()
    return 0 if driver is None else driver.cudasim_calls(None)


def violations():
    """Texts of what a real device would have punished, oldest first."""
    driver = device.driver()
    if driver is None:
        return []
    found = []
    for index in range(driver.cudasim_violation_count()):
        text = ctypes.create_string_buffer(2048)
        driver.cudasim_violation(index, text, len(text))
        found.append(text.value.decode("utf-8", "replace"))
    return found


def _counted(count, what, ending="s"):
    return f"{count} {what}" if count == 1 else f"{count} {what}{ending}"


def last_line():
    """One line on what a run did and what was refused to it; or None."""
    found = counters()
    if not found:
        return None
    line = "simulated: " + ", ".join((
        _counted(found["bridged_ops"], "operator"),
        _counted(found["launches_without_twin"], "launch", "es")
        + " without a twin",
        _counted(found["refused_calls"], "refused call"),
        _counted(found["violations"], "violation")))
    if found["launches_checked"]:
        line += (f", {_counted(found['launches_checked'], 'raw launch', 'es')} "
                 "checked that computed nothing")
    said = [text for text in (found["last_missing_twin"],
                              found["refused_names"]) if text]
    return line + (f" ({'; '.join(said)})" if said else "")


def virtual_time():
    """Virtual seconds and bytes so far; {} unless a card or profile is used.

    `seconds` is when all work submitted so far is over on the modelled card.
    Nothing of this was measured on one.
    """
    driver = device.driver()
    if driver is None or not driver.cudasim_time_is_kept():
        return {}
    text = ctypes.create_string_buffer(2048)
    driver.cudasim_virtual_report(text, len(text))
    report = json.loads(text.value)
    values = {"seconds": max(report["now_ns"], report["end_ns"]) / 1e9}
    for name, figure in report.items():
        if name in ("now_ns", "end_ns"):
            continue
        if name.endswith("_ns"):
            values[name[:-3] + "_seconds"] = figure / 1e9
        else:
            values[name] = figure
    return values


def _text(function):
    """What one of the simulator's text functions says; "" for nothing."""
    buffer = ctypes.create_string_buffer(4096)
    function(buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")
