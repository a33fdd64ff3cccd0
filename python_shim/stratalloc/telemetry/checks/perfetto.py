# SPDX-License-Identifier: Apache-2.0
"""Perfetto's format: tracks are told before their events, slices nest."""

from stratalloc.telemetry.checks.findings import Findings
from stratalloc.telemetry.exports.messages import messages

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4


def check(path):
    kinds = messages("perfetto")
    with open(path, "rb") as file:
        raw = file.read()
    from google.protobuf.message import DecodeError

    trace = kinds["Trace"]()
    try:
        trace.ParseFromString(raw)
    except (DecodeError, ValueError, RecursionError) as error:
        return [f"it is no Perfetto trace, or cut off: {str(error)[:200]}"]
    found, tracks, open_slices, last = Findings(), {}, {}, {}
    if not trace.packet:
        found.add("it has no packets")
    for i, packet in enumerate(trace.packet):
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            if track.uuid in tracks:
                found.add(f"packet {i} tells track {track.uuid} again")
            if track.HasField("parent_uuid") and (track.parent_uuid
                                                  not in tracks):
                found.add(f"packet {i} names the parent {track.parent_uuid}, "
                          "which was not told before")
            tracks[track.uuid] = track.HasField("counter")
        if packet.HasField("track_event"):
            if not packet.trusted_packet_sequence_id:
                found.add(f"packet {i} has no sequence")
            _event(found, i, packet, tracks, open_slices, last)
    for uuid, inside in open_slices.items():
        if inside:
            found.add(f"track {uuid} leaves {inside} slices open")
    return found.done()


def _event(found, i, packet, tracks, open_slices, last):
    event, uuid = packet.track_event, packet.track_event.track_uuid
    if uuid not in tracks:
        found.add(f"packet {i} is of track {uuid}, which was not told before")
        return
    if packet.timestamp < last.get(uuid, 0):
        found.add(f"packet {i} is before the last one of its track")
    last[uuid] = packet.timestamp
    if (event.type == _COUNTER) != tracks[uuid]:
        found.add(f"packet {i} is no event of such a track")
    elif event.type == _COUNTER and not event.HasField("counter_value"):
        found.add(f"packet {i} is a counter without a value")
    elif event.type == _BEGIN:
        open_slices[uuid] = open_slices.get(uuid, 0) + 1
    elif event.type == _END:
        if not open_slices.get(uuid):
            found.add(f"packet {i} ends a slice that did not begin")
        else:
            open_slices[uuid] -= 1
    elif event.type not in (_INSTANT, _COUNTER):
        found.add(f"packet {i} has the type {event.type}")
