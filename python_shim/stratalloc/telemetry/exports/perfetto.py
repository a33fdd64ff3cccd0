# SPDX-License-Identifier: Apache-2.0
"""Perfetto's own trace format, for long runs: a third of the JSON's size.

A track per device with its counters, one per thread with its scopes, one per
pair of tiers with the moves between them and flows from where a handle left to
where it came back. Nanoseconds since the run began. Needs protobuf; fields are
those of messages.py.
"""

import heapq

from stratalloc.telemetry import model, progress, replay
from stratalloc.telemetry.exports import instants, samples, spans
from stratalloc.telemetry.exports.messages import messages
from stratalloc.telemetry.exports.notes import notes
from stratalloc.telemetry.exports.target import target, text
from stratalloc.telemetry.model import Kind

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
_BYTES = 3  # CounterDescriptor.UNIT_SIZE_BYTES
_MOST = 500_000  # points of a counter
_SEQUENCE = 1
_PID = 1


def write(run, path, most=_MOST):
    """`most`: points of a counter; peaks and the last value always are.

    Raises:
      MissingPackageError: protobuf is not installed.
    """
    writer = _Writer(run, most)
    with target(path) as file:
        for packets in writer.packets():
            file.write(packets)


class _Writer:
    """Packets as bytes; packets that are alike but for numbers share one."""

    def __init__(self, run, most):
        self.run, self.most = run, most
        self.kinds = messages("perfetto")
        self.uuid = 0
        self.times = run.events["time"]
        self.end = max(run.duration, int(self.times.max(initial=0)))

    def packets(self):
        process = self._track(text(str(self.run.about.get(
            "command", "stratalloc"))), process=True)
        yield process[1]
        yield self._instant(process[0], 0, "recording", notes(self.run))
        for thread in spans.threads(self.run):
            uuid, packet = self._track(text(self.run.threads[thread]),
                                       process[0], thread=thread)
            yield packet
            yield from self._slices(uuid, thread)
        for index in replay.devices(self.run):
            yield from self._device(process[0], index)

    def _track(self, name, parent=None, process=False, thread=None,
               counter=False):
        self.uuid += 1
        packet = self._packet(0)
        track = packet.track_descriptor
        track.uuid, track.name = self.uuid, name
        if parent is not None:
            track.parent_uuid = parent
        if process:
            track.process.pid, track.process.process_name = _PID, name
        if thread is not None:
            track.thread.pid, track.thread.tid = _PID, thread + 1
            track.thread.thread_name = name
        if counter:
            track.counter.unit = _BYTES
        return self.uuid, self._bytes(packet)

    def _packet(self, time):
        packet = self.kinds["TracePacket"]()
        packet.timestamp = time
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet

    def _bytes(self, packet):
        """As an element of Trace.packet."""
        body = packet.SerializeToString()
        length, head = len(body), bytearray(b"\x0a")
        while length > 127:
            head.append(length & 127 | 128)
            length >>= 7
        head.append(length)
        return bytes(head) + body

    def _slices(self, uuid, thread):
        for event, opens, scope in spans.bounded(self.run, thread, 1 << 22):
            packet = self._packet(int(self.times[event])
                                  if event < len(self.times) else self.end)
            packet.track_event.type = BEGIN if opens else END
            packet.track_event.track_uuid = uuid
            if opens:
                packet.track_event.name = text(self.run.scopes[scope])
                packet.track_event.categories.append("scope")
            yield self._bytes(packet)

    def _device(self, process, index):
        walked = replay.Replay(self.run, index)
        uuid, packet = self._track(f"device {index}", process)
        yield packet
        for group, name, curve in progress.over(instants.curves(walked),
                                                "writing counters"):
            yield from self._counter(
                uuid, f"category {name}" if group == "categories" else name,
                curve)
        yield from self._instants(uuid, index)
        yield from self._moves(uuid, index)

    def _counter(self, parent, name, curve):
        uuid, packet = self._track(name, parent, counter=True)
        yield packet
        packet = self._packet(0)
        event = packet.track_event
        event.type, event.track_uuid = COUNTER, uuid
        event.counter_value = curve.base
        yield self._bytes(packet)
        moments, values = samples.samples(curve, self.most)
        for time, value in zip(self.times[moments].tolist(), values.tolist()):
            packet.timestamp = time
            event.counter_value = value
            yield self._bytes(packet)

    def _instants(self, uuid, index):
        for one in instants.instants(self.run, index):
            yield self._instant(uuid, one.time, one.name, {
                "address": one.address, "bytes": one.bytes,
                "scope": one.scope})

    def _instant(self, uuid, time, name, said):
        packet = self._packet(time)
        event = packet.track_event
        event.type, event.track_uuid, event.name = INSTANT, uuid, name
        self._annotate(event, said)
        return self._bytes(packet)

    def _annotate(self, event, said):
        for key, value in said.items():
            note = event.debug_annotations.add(name=key)
            if isinstance(value, int) and value < 1 << 63:
                note.int_value = int(value)
            else:
                note.string_value = str(value)

    def _moves(self, parent, index):
        events = self.run.events
        ours = events[((events["kind"] == Kind.MOVE)
                       | (events["kind"] == Kind.DROPPED))
                      & (events["device"] == index)]
        tracks, flows, lanes = {}, {}, {}
        found = zip(*(ours[name].tolist() for name in (
            "time", "address", "bytes", "aux", "kind", "category", "scope")))
        for flow, (time, address, size, aux, kind, category, scope) in enumerate(
                found, 1):
            if kind == Kind.DROPPED:
                flows.pop(address, None)
                continue
            # Slices of a track do not overlap: as many tracks as move at once.
            begin = time - min(aux, time)
            lane = _lane(lanes.setdefault(category, []), begin, time)
            if (category, lane) not in tracks:
                name = "{} to {}".format(*(
                    model.TIERS[one] for one in model.ends(category)))
                tracks[category, lane], packet = self._track(name, parent)
                yield packet
            packet = self._packet(begin)
            event = packet.track_event
            event.type, event.track_uuid = BEGIN, tracks[category, lane]
            event.name = text(self.run.scopes[scope]) if scope else "move"
            event.categories.append("move")
            self._annotate(event, {"address": address, "bytes": size})
            event.flow_ids.append(flows.setdefault(address, flow))
            if model.ends(category)[1] == 0:
                del flows[address]  # it is back: its story ends
            yield self._bytes(packet)
            packet = self._packet(time)
            packet.track_event.type = END
            packet.track_event.track_uuid = tracks[category, lane]
            yield self._bytes(packet)


def _lane(lanes, begin, end):
    """Of lanes, a heap of (when its last slice ends, number), the one that is
    free first, or a new one where all are taken."""
    if lanes and lanes[0][0] <= begin:
        lane = lanes[0][1]
        heapq.heapreplace(lanes, (end, lane))
    else:
        lane = len(lanes)
        heapq.heappush(lanes, (end, lane))
    return lane
