# SPDX-License-Identifier: Apache-2.0
"""What a person reads of one sample and of two, and of the card."""

import re
import sys
import types

import pytest

from python_shim.stratalloc._live.tests import live_samples
from python_shim.stratalloc._live.tests.live_samples import MIB
from stratalloc._rendering import table as _table
from stratalloc._live import card, view


@pytest.fixture(autouse=True)
def _narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")


def _seen(*samples, cards=None, **more):
    found = view.View(**more)
    for one in samples:
        found.add(one, cards or {device["device"]: card.look(device, 4242)
                                 for device in one["devices"]})
    return found


def _lines(seen, *arguments, width=80):
    lines = seen.page(width, *arguments).text().splitlines()
    assert max(map(_table.cells, lines)) <= width, lines
    return lines


def test_two_samples_say_how_fast():
    lines = _lines(_seen(*live_samples.later(2.0)))
    assert ("moved: out 64 MiB/s, in 32 MiB/s, to disk 1 MiB/s, from disk 0 "
            "B/s") in lines
    assert ("waited: 0.25 thread-s/s; 7 times, 0.50 thread-s in all; out of "
            "memory 0 times") in lines
    rows = {line.split("  ")[0]: line.split()[-6:] for line in lines}
    assert rows["allocated"] == ["36", "MiB", "48", "MiB", "75", "%"]
    assert rows["evicted to host"] == ["8", "MiB", "1", "GiB", "1", "%"]
    assert rows["evicted to disk"][-3:] == ["0", "B", "-"]
    assert "GPT.head      20 MiB  12 MiB  8 MiB  parameter" in lines
    assert lines[-1] == "and 3 more"


def test_waits_of_several_threads_are_no_share_of_the_time():
    """Ten threads that wait are ten seconds in each, and so are two devices."""
    before, now = ([live_samples.device(device=i, stall_ns=int(at * 5e9))
                    for i in (0, 1)] for at in (0, 2))
    one = _seen(live_samples.sample(0, before[0]),
                live_samples.sample(2, now[0]))
    assert any(line.startswith("waited: 5.00 thread-s/s; ")
               for line in _lines(one))
    both = _seen(live_samples.sample(0, *before), live_samples.sample(2, *now))
    assert both.strip(80)[2] == "out 0 B/s, in 0 B/s, waited 10.00 thread-s/s"
    for said in [*_lines(both), *both.strip(80)]:
        assert not re.search(r"wait.*%", said), said


def test_one_sample_knows_no_speed_and_says_so():
    lines = _lines(_seen(live_samples.sample()))
    assert "moved: out -, in -, to disk -, from disk -" in lines
    assert any(line.startswith("waited: -;") for line in lines)


def test_a_new_process_of_the_same_number_is_not_compared():
    before, now = live_samples.later()
    assert _seen(now, before).seconds is None
    assert _seen(before, {**now, "pid": 1}).seconds is None
    assert _seen(before, now).seconds == 2.0


def _layer(owner, size, category="parameter", **more):
    return {"owner": owner, "bytes": size, "device": size, "host": 0,
            "disk": 0, "peak": size, "moved": 0,
            "categories": {category: size}, **more}


def _of_layers(layers, at=0, **more):
    return live_samples.sample(at, live_samples.device(
        layers=layers, other_layers={"count": 0, "bytes": 0}, **more))


def _repeated(moved=0):
    """12 layers of a head, 2 × 3 experts, and what is nobody's repetition."""
    return [*(_layer(f"GPT.layers.{i}.mlp", 2 * MIB, moved=moved)
              for i in (11, 1, 10, 0, *range(2, 10))),
            *(_layer(f"GPT.moe.{i}.experts.{j}", MIB) for i in (0, 1)
              for j in range(3)),
            _layer("GPT.layers.13.mlp", MIB), _layer("GPT.layers.12.mlp", MIB,
                                                     "buffer"),
            _layer("GPT.head", 9 * MIB)]


def test_repeated_layers_are_one_line_as_in_holders():
    lines = _lines(_seen(_of_layers(_repeated())))
    at = next(i for i, line in enumerate(lines) if line.startswith("owner "))
    assert [line.split("  ")[0] for line in lines[at + 1:]] == [
        "GPT.layers.0–11.mlp × 12", "GPT.head", "GPT.moe.0–1.experts.0–2 × 6",
        "GPT.layers.12.mlp", "GPT.layers.13.mlp"]
    assert lines[at + 1].split()[3:] == ["24", "MiB", "24", "MiB", "parameter"]
    assert _seen(_of_layers(_repeated())).strip(80)[3].startswith(
        "holds most: GPT.layers.0–11.mlp × 12 24 MiB, GPT.head 9 MiB, ")


def test_a_line_of_repeated_layers_has_their_speed_and_no_common_peak():
    seen = _seen(_of_layers(_repeated()), _of_layers(_repeated(MIB), 2),
                 order="c")
    row = next(line for line in _lines(seen) if "× 12" in line)
    assert "6 MiB" in row, row
    seen = _seen(_of_layers(_repeated()), order="p")
    row = next(line for line in _lines(seen) if "× 12" in line)
    assert "≤ 24 MiB" in row, row
    unknown = [_layer(f"net.{i}", MIB, moved=None if i else 0)
               for i in range(3)]
    seen = _seen(_of_layers(unknown), _of_layers(unknown, 2), order="c")
    row = next(line for line in _lines(seen) if "× 3" in line)
    assert row.split()[-2] == "-", row


@pytest.mark.parametrize("key, first, column", [
    ("t", "GPT.head", ["20", "MiB", "12", "MiB", "8", "MiB"]),
    ("p", "step", ["0", "B", "40", "MiB"]),
    ("c", "step", ["0", "B", "12", "MiB"])])
def test_layers_are_sorted_by_what_a_key_says(key, first, column):
    lines = _lines(_seen(*live_samples.later(), order=key))
    at = next(i for i, line in enumerate(lines) if line.startswith("owner "))
    words = lines[at + 1].split()
    assert words[0] == first and (
        [word for word in words if word != "parameter"][-len(column):] == column)
    if key != "t":
        assert {"p": "peak", "c": "churn/s"}[key] in lines[at].split()


def test_a_page_is_as_high_as_the_screen():
    many = [live_samples.layer(f"layer{i}", i * MIB) for i in range(50)]
    seen = _seen(live_samples.sample(0, live_samples.device(layers=many)))
    for height in (16, 24, 40):
        lines = _lines(seen, height, "keys")
        assert len(lines) == height and lines[-1] == "keys"
    assert lines[-2].startswith("and ") and "layer49" in "".join(lines)


def test_several_devices_are_a_line_each():
    two = [live_samples.device(device=i) for i in (0, 1)]
    moved = dict(two[1], moved={"out": 4 * MIB, "in": 2 * MIB, "to_disk": 0,
                                "from_disk": 0})
    lines = _lines(_seen(live_samples.sample(0, *two),
                         live_samples.sample(2, two[0], moved)))
    rows = [line.split() for line in lines if line[:2] in ("0 ", "1 ")]
    assert [row[0] for row in rows] == ["0", "1"]
    assert rows[0][9:11] == ["0", "B/s"] and rows[1][9:11] == ["3", "MiB/s"]
    assert any(line.startswith("GPT.head (device 1)") for line in lines)


_KEYS = "sorted by total; t total, p peak, c churn, q quit"


def _large(devices, layers=("embedding_of_words", "head", "loss")):
    """Two samples of sizes that have many digits."""
    def device(index, at):
        sizes = {"parameter": int(1.25 * 1024 * MIB),
                 "optimizer_state": int(2.55 * 1024 * MIB)}
        held = [live_samples.layer(
            name, sum(sizes.values()), categories=sizes, disk=MIB,
            moved=int(at * 1023.3 * MIB)) for name in layers]
        return live_samples.device(
            device=index, allocated=int(63.27 * 1024 * MIB),
            limit=int(79.18 * 1024 * MIB), reserved=int(70.26 * 1024 * MIB),
            host_bytes=int(101.3 * 1024 * MIB), layers=held,
            moved={"out": int(at * 999.9 * MIB), "in": int(at * 999.9 * MIB),
                   "to_disk": int(at * 1.5 * MIB), "from_disk": 0})

    return [live_samples.sample(
        at, *[device(i, at) for i in range(devices)],
        simulated="simulated CUDA: no GPU is used") for at in (0, 2)]


def _has_layers(lines, last):
    """Title, three layers at least, how many more, the keys, to the end."""
    at = next(i for i, line in enumerate(lines) if line.startswith("owner "))
    end = len(lines) - len(last)
    assert lines[end:] == last and lines[end - 1].startswith("and ")
    assert end - 1 - at >= 4, lines


def test_eight_devices_leave_room_for_layers_and_keys():
    lines = _lines(_seen(*_large(8)), 24, _KEYS)
    assert len(lines) == 24
    _has_layers(lines, [_KEYS])
    for i in range(8):
        assert any(re.match(rf"{i} +63\.27 GiB .* 79\.18 GiB ", line)
                   for line in lines), lines
    assert sum("busy unknown" in line for line in lines) == 1


def test_a_very_small_screen_has_memory_layers_and_keys(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = _lines(_seen(*_large(1)), 10, _KEYS, width=40)
    assert len(lines) <= 10
    _has_layers(lines, ["sorted by total; t total, p peak, c", "churn, q quit"])
    assert lines[0] == "process 4242: train.py --lr 1"
    assert any(line.startswith("63.27 GiB of 79.18 GiB (80 %), simulated")
               for line in lines), lines


@pytest.mark.parametrize("order", "tpc")
@pytest.mark.parametrize("devices", [1, 8, 20])
def test_no_number_is_cut(monkeypatch, devices, order):
    seen = _seen(*_large(devices), order=order)
    for width in range(32, 101, 5):
        monkeypatch.setenv("COLUMNS", str(width))
        for height in (10, 24, 60):
            lines = _lines(seen, height, _KEYS, width=width)
            assert len(lines) <= height
            for line in [*lines, *seen.strip(width)]:
                assert not re.search(r"[\d.]…|…(\d|\.\d|[KMG]?i?B)", line), line


def test_several_cards_are_one_line():
    cards = {0: card.Card(80, 70 << 30, ((7, 1 << 30),)),
             1: card.Card(90, 10 << 30, ()),
             2: card.Card(why="NVML: lost")}
    assert card.line(sorted(cards.items()), 200) == (
        "cards: busy 80 to 90 % (1 unknown), used 80 GiB (1 unknown), by "
        "others pid 7 1 GiB (device 0) (1 unknown: NVML: lost)")


def test_names_move_no_cursor():
    hostile = live_samples.layer("evil\x1b[2J\x1b]0;x\x07\nname", MIB)
    page = _seen(live_samples.sample(
        0, live_samples.device(layers=[hostile]),
        command="a\x1b[31m\nb")).page(80).text()
    assert not set(page) & {"\x1b", "\x07"}
    assert "evil?[2J?]0;x??name" in page and "a?[31m?b" in page


def test_events_are_told_where_they_are_counted():
    counted = [live_samples.sample(at, level="events", events={
        "recorded": recorded, "lost": 3}) for at, recorded in ((0, 0), (2, 900))]
    assert "telemetry events: 450 events/s, 3 lost" in _lines(_seen(*counted))


# What NVML of a card says; pid 4242 is the process of the samples.
class _Nvml(types.ModuleType):
    NVMLError = type("NVMLError", (Exception,), {})
    NVMLError_NotSupported = type("NVMLError_NotSupported", (NVMLError,), {})

    def __init__(self, processes, refuses=()):
        super().__init__("pynvml")
        self._processes, self._refuses, self.open = processes, refuses, 0

    def nvmlInit(self):
        self._may("nvmlInit")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid):
        assert uuid == "GPU-12-34"
        return "handle"

    def nvmlDeviceGetMemoryInfo(self, handle):
        self._may("memory")
        return types.SimpleNamespace(used=70 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle):
        self._may("rates")
        return types.SimpleNamespace(gpu=87)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        self._may("processes")
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=size)
                for pid, size in self._processes]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle):
        raise self.NVMLError_NotSupported("no graphics")

    def _may(self, what):
        if what in self._refuses:
            raise self.NVMLError(f"{what} refused")


def _lines_of_card(monkeypatch, nvml, uuid="12-34"):
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    one = live_samples.device(uuid=uuid)
    lines = _lines(_seen(live_samples.sample(0, one)))
    assert nvml is None or nvml.open == 0
    at = next(i for i, line in enumerate(lines) if line.startswith("card: "))
    return " ".join(lines[at:lines.index(next(
        line for line in lines if line.startswith("owner ")))])


def test_the_card_says_who_else_holds_it(monkeypatch):
    nvml = _Nvml([(4242, 4 << 30), (7, 1 << 30), (8, 64 << 30), (9, None)])
    assert _lines_of_card(monkeypatch, nvml) == (
        "card: busy 87 %, used 70 GiB, by others pid 8 64 GiB, pid 7 1 GiB, "
        "pid 9 unknown")


@pytest.mark.parametrize("nvml, uuid, said", [
    (None, "12-34", "busy unknown, used unknown, by others unknown (NVML's "
     "package nvidia-ml-py is not installed)"),
    (_Nvml([(4242, 1)]), None, "busy unknown, used unknown, by others unknown "
     "(the device is simulated)"),
    (_Nvml([(4242, 1)], ["nvmlInit"]), "12-34", "busy unknown, used unknown, by "
     "others unknown (NVML: nvmlInit refused)"),
    (_Nvml([(4242, 1)], ["rates", "memory"]), "12-34",
     "busy unknown, used unknown, by others none"),
    (_Nvml([(4242, 1)], ["processes"]), "12-34", "busy 87 %, used 70 GiB, by "
     "others unknown (NVML: processes refused)"),
    (_Nvml([(7, 1)]), "12-34", "busy 87 %, used 70 GiB, by others unknown (the "
     "driver does not list this process among those of the card)")])
def test_what_the_driver_does_not_say_is_unknown(monkeypatch, nvml, uuid, said):
    assert _lines_of_card(monkeypatch, nvml, uuid) == f"card: {said}"
