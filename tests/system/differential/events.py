# SPDX-License-Identifier: Apache-2.0
"""What history tells of one program, in words that two allocators share.

Equal, event by event and in order: action, requested size, number of the block
(by the order of allocation), number of the stream (by the order in which they
came), the frames that are the program's own, compile context, label. Time never
goes back.
Completed frees that follow each other have no order: native looks at its
streams in the order of a hash table.

Not comparable one by one: segment_alloc, segment_free, segment_map and
segment_unmap. Native takes 2 MiB, 20 MiB or whole segments and keeps what is
split; ours maps by the handle. They are held to what they must mean instead
(`inconsistent`): the sizes that are mapped add up to reserved_bytes after every
step, what is mapped was not, what is unmapped was, and nothing is allocated
outside mapped memory or over another block. Also by itself, for it depends on
what is reserved: `device_free` of an oom event, with which everything mapped
adds up to the card; the size of a snapshot event, which is active_bytes.
"""

BLOCKS = ("alloc", "free_requested", "free_completed")
COMES = ("segment_alloc", "segment_map")
GOES = ("segment_free", "segment_unmap")


def lines(told):
    """The comparable events, as tuples."""
    blocks, streams, made = {}, {}, 0
    result = []
    for event in told["events"]:
        action = event["action"]
        if action in COMES + GOES:
            continue
        number = None
        if action == "alloc":
            made += 1
            blocks[event["addr"]] = made
        if action in BLOCKS:
            number = blocks.get(event["addr"], "unknown")
        if action == "free_completed":
            blocks.pop(event["addr"], None)
        stream = streams.setdefault(event["stream"], len(streams))
        size = None if action == "snapshot" else event["size"]
        result.append((
            action, size, number, stream, tuple(event["frames"]),
            event["compile_context"], event["user_metadata"],
        ))  # fmt: skip
        for i in range(len(result) - 1, 0, -1):
            one, two = result[i - 1], result[i]
            if not one[0] == two[0] == "free_completed" or one[2] < two[2]:
                break
            result[i - 1], result[i] = two, one
    return result


def difference(native, ours):
    """None, or the first event that differs, in words."""
    a, b = lines(native), lines(ours)
    for i, (n, o) in enumerate(zip(a, b)):
        if n != o:
            before = "".join(f"\n  both   {each}" for each in a[max(0, i - 3):i])
            return f"event {i}:{before}\n  native {n}\n  ours   {o}"
    if len(a) != len(b):
        return f"native tells {len(a)} events, ours {len(b)}"
    return None


class Memory:
    """What is mapped, as ranges that do not touch."""

    def __init__(self):
        self.ranges = []  # sorted (begin, end)

    def holds(self, begin, end):
        return any(b <= begin and end <= e for b, e in self.ranges)

    def touches(self, begin, end):
        return any(b < end and begin < e for b, e in self.ranges)

    def add(self, begin, end):
        joined = []
        for b, e in self.ranges:
            if e == begin:
                begin = b
            elif b == end:
                end = e
            else:
                joined.append((b, e))
        self.ranges = sorted([*joined, (begin, end)])

    def remove(self, begin, end):
        left = []
        for b, e in self.ranges:
            left += [(b, min(e, begin)), (max(b, end), e)]
        self.ranges = [(b, e) for b, e in left if b < e]

    def bytes(self):
        return sum(e - b for b, e in self.ranges)


def inconsistent(told, card):
    """None, or what about segments and numbers cannot be, in words.

    A number that is None says nothing of its snapshot: memory moved meanwhile.
    `card`: bytes of the device. What the two numbers of an oom event leave out
    is the same every time: the context's own memory.
    """
    mapped, live = Memory(), {}
    numbers = iter(told["numbers"])
    time, other = 0, None
    for i, event in enumerate(told["events"]):
        where = f"event {i}, {event}: "
        action, size = event["action"], event["size"]
        begin = event.get("addr", 0)
        end = begin + size
        if event["time_us"] < time:
            return where + "time goes back"
        time = event["time_us"]
        if action in COMES:
            if mapped.touches(begin, end):
                return where + "is mapped already"
            mapped.add(begin, end)
        elif action in GOES:
            if not mapped.holds(begin, end):
                return where + "was not mapped"
            if any(b < end and begin < e for b, e in live.values()):
                return where + "a block was there"
            mapped.remove(begin, end)
        elif action == "alloc":
            if not mapped.holds(begin, end):
                return where + "outside mapped memory"
            if any(b < end and begin < e for b, e in live.values()):
                return where + "over another block"
            live[begin] = (begin, end)
        elif action == "free_completed":
            if live.pop(begin, None) != (begin, end):
                return where + "was not allocated so"
        elif action == "oom":
            rest = card - event["device_free"] - mapped.bytes()
            if rest != (rest if other is None else other):
                return where + f"{rest} bytes are nobody's, {other} before"
            other = rest
        elif action == "snapshot" and event["user_metadata"] == "after":
            given = next(numbers)
            if given is None:
                continue
            reserved, active = given
            if reserved != mapped.bytes():
                return where + f"{mapped.bytes()} mapped, {reserved} reserved"
            if active != size:
                return where + f"{active} active"
    if live or next(numbers, None) is not None:
        return f"left at the end: {live}"
    return None
