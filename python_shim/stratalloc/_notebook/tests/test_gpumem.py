# SPDX-License-Identifier: Apache-2.0
"""Numbers of %gpumem and %%gpumem are torch's, and pictures and tables show
them."""

import random
import re
import xml.etree.ElementTree

import pytest

from stratalloc import simulate

simulate.load("48MiB", devices=2)

import torch  # noqa: E402

from gpumem_cells import (  # noqa: E402,F401
    MIB, RESET, run_fixture, shell_fixture, sums, torchs)
import stratalloc  # noqa: E402
from stratalloc._rendering import plot_svg as _plot_svg  # noqa: E402
from stratalloc._hooks import resets as _resets  # noqa: E402
from stratalloc.telemetry.analysis.curves import Curves  # noqa: E402


@pytest.mark.parametrize("seed", range(6))
def test_numbers_are_torchs_on_two_devices(run, shell, seed):
    rng = random.Random(seed)
    assert not run("kept = {0: [], 1: []}").error
    for _ in range(4):
        lines = ["%%gpumem -o found" + rng.choice(["", " --trace"])]
        for _ in range(rng.randint(1, 8)):
            device = rng.randrange(2)
            lines.append(rng.choice([
                f"kept[{device}].append(tensor({rng.randint(1, 4)}, {device}))",
                f"del kept[{device}][:1]",
                f"tensor({rng.randint(1, 6)}, {device});",
                "torch.cuda.reset_peak_memory_stats()",
                f"with stratalloc.scope('Part.{rng.randrange(3)}'): "
                f"kept[{device}].append(tensor(1, {device}))"]))
        before = [torchs(device) for device in range(2)]
        ran = run("\n".join(lines))
        assert not ran.error, ran.text
        found = shell.user_ns["found"]
        sums(found)
        has_reset = any("reset_peak" in line for line in lines)
        for one in found.devices:
            was, now = before[one.device], torchs(one.device)
            for name in ("allocated", "reserved"):
                numbers = getattr(one, name)
                key = f"{name}_bytes.all."
                assert numbers["before"] == was[key + "current"]
                assert numbers["after"] == now[key + "current"]
                # The cell's own reset makes torch forget, not us.
                assert numbers["peak"] == now[key + "peak"] or (
                    has_reset and numbers["peak"] > now[key + "peak"])
            for ours, name in (
                    (one.allocated_in_all, "allocated_bytes.all.allocated"),
                    (one.blocks_in_all, "allocation.all.allocated"),
                    (one.refused, "num_ooms")):
                assert ours == now[name] - was[name], name
        assert {one.device for one in found.devices} >= {
            device for device in range(2) if torchs(device)[
                "allocated_bytes.all.peak"]}
        assert str(found) in ran.text


def test_a_peak_is_the_cells_own(run, shell):
    """Not one before it, and one that the cell makes torch forget is."""
    run("tensor(20);")
    run("%%gpumem -o found\ntensor(2);")
    assert shell.user_ns["found"].devices[0].allocated["peak"] == 2 * MIB
    assert torch.cuda.max_memory_allocated() == 2 * MIB
    run("""\
        %%gpumem -o found
        tensor(8)
        torch.cuda.reset_peak_memory_stats()
        kept = tensor(1)
        """)
    found = shell.user_ns["found"].devices[0]
    assert found.allocated == {"before": 0, "peak": 8 * MIB, "after": MIB}
    assert found.at_peak.total == 8 * MIB
    assert torch.cuda.max_memory_allocated() == MIB  # as the cell wanted
    run("""\
        %%gpumem -o found
        tensor(30)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        """)
    reserved = shell.user_ns["found"].devices[0].reserved
    assert reserved["peak"] >= 30 * MIB > torch.cuda.max_memory_reserved()


def test_cells_within_cells(run, shell):
    """The one around has the peak of all, the ones inside their own."""
    ran = run("""\
        %%gpumem -o outer
        kept = [tensor(1)]
        tensor(9)
        get_ipython().run_cell_magic(
            "gpumem", "-o inner", "kept.append(tensor(2)); tensor(3);")
        tensor(1);
        """)
    assert not ran.error, ran.text
    outer, inner = (shell.user_ns[name].devices[0].allocated
                    for name in ("outer", "inner"))
    assert outer == {"before": 0, "peak": 10 * MIB, "after": 3 * MIB}
    assert inner == {"before": MIB, "peak": 6 * MIB, "after": 3 * MIB}
    assert ran.text.count("the cell took") == 2


def test_a_cell_is_as_without(run, shell):
    assert run("%%gpumem\nx = 20\nx + 1").result.result == 21
    assert shell.user_ns["x"] == 20 and shell.user_ns["_"] == 21
    assert run("%%gpumem\nx + 1;").result.result is None
    assert run("%%gpumem\nx = 3").result.result is None
    assert run("%%gpumem\n# nothing").error is None
    assert "hello" in run("%%gpumem\n!echo hello").text
    assert run("%%gpumem\n%time 7 * 6").result.result == 42
    assert run("%%gpumem\ndef f():\n    return 5\nf()").result.result == 5
    assert run("y = %gpumem --top 2 x * 4\ny").result.result == 12
    assert run("%gpumem f(); x + 2").result.result == 5
    assert run("def g(local):\n    %gpumem local.append(1)\n"
               "items = []\ng(items); items").result.result == [1]


def test_what_a_cell_kept_is_told(run, shell):
    ran = run("""\
        %%gpumem --peak --top 2 -o found
        with stratalloc.scope("Net.layers.0", category="buffer"):
            kept = [tensor(4)]
        with stratalloc.scope("Net.layers.1", category="activation"):
            kept.append(tensor(2))
        tensor(3);
        """)
    lines = ran.text.splitlines()
    assert re.fullmatch("the cell took [0-9.]+ (ms|µs|s)", lines[0])
    assert [line.split() for line in lines[1:3]] == [
        ["device", "0", "before", "peak", "after", "kept"],
        ["allocated", "0", "B", "9", "MiB", "6", "MiB", "+6", "MiB"]]
    assert "allocated in all: 9 MiB in 3 blocks" in lines
    assert "+6 MiB from before to after on device 0" in lines
    assert re.search(r"total +\+6 MiB +\+2 ", ran.text)
    assert re.search(r"device 0 at its peak +bytes", ran.text)
    assert ran.text.count("--top N shows more") == 2
    frame = [(row["name"], row["category"], row["bytes"])
             for row in shell.user_ns["found"]["devices"][0]["rows"]]
    assert frame == [("Net.layers.0", "buffer", 4 * MIB),
                     ("Net.layers.1", "activation", 2 * MIB)]
    less = run("%%gpumem\ndel kept[0]").text
    assert "-4 MiB from before to after" in less and "peak" in less
    assert "at its peak" not in less


def test_threads_of_a_cell_are_in_it(run, shell):
    run("""\
        %%gpumem -o found
        kept = []
        def work(device):
            for _ in range(5):
                kept.append(tensor(1, device))
                torch.cuda.reset_peak_memory_stats(device)
        threads = [threading.Thread(target=work, args=(i % 2,))
                   for i in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """)
    found = shell.user_ns["found"]
    sums(found)
    assert [one.kept.total for one in found.devices] == [10 * MIB] * 2
    assert [one.allocated["peak"] for one in found.devices] == [10 * MIB] * 2


def test_what_moved_and_waited_is_told(run, shell):
    before = dict(stratalloc.stats(0)["tiers"])
    ran = run("""\
        %%gpumem -o found
        kept = [torch.nn.Linear(1024, 2048, bias=False).cuda()
                for _ in range(8)]
        with torch.no_grad():
            for layer in kept:
                layer(torch.ones(1, 1024, device="cuda"))
        """)
    assert not ran.error, ran.text
    one = shell.user_ns["found"].devices[0]
    sums(shell.user_ns["found"])
    after = stratalloc.stats(0)["tiers"]
    assert one.moved == {name: after["bytes_" + name] - before["bytes_" + name]
                         for name in one.moved}
    assert one.moved["evicted"] >= 16 * MIB and one.moved["restored"]
    assert (one.stalls, one.stall_ns) == (
        after["stalls"] - before["stalls"],
        after["stall_ns"] - before["stall_ns"])
    assert re.search(r"moved: [0-9.]+ MiB out, [0-9.]+ MiB in, 0 B to disk, "
                     "0 B from disk", ran.text)
    assert f"operators waited {one.stalls} time" in ran.text or not one.stalls
    run("%%gpumem -o found\n1")
    assert set(shell.user_ns["found"].devices[0].moved.values()) == {0}
    # What is away is not on the device, and has not gone.
    assert one.live["after"] == 64 * MIB > one.allocated["after"]
    assert "live, all tiers" in ran.text


def _pictures(found):
    return [xml.etree.ElementTree.fromstring(one) for one in
            re.findall("<svg.*?</svg>", found._repr_html_())]


def test_pictures_are_of_events_where_there_are_some(run, shell):
    cell = "%%gpumem{} -o found\nkept = tensor(4)\ntensor(5);"

    def shown(option=""):
        assert not run(cell.format(option)).error
        found = shell.user_ns["found"]
        (picture,) = _pictures(found)
        return found, picture.find("{*}title").text, picture.find(
            "{*}desc").text

    found, title, desc = shown()
    assert found.run is None and title == "allocated on device 0 by category"
    assert desc == ("before 0 B: nothing; peak 9 MiB: unknown 9 MiB; "
                    "after 4 MiB: unknown 4 MiB")
    found, title, desc = shown(" --trace")
    assert title == "allocated on device 0 by category, over time"
    assert re.search("most at .*, 13 MiB|most at .*, 9 MiB", desc)
    areas = Curves(found.run, 0).areas()
    drawn = [sum(each) for each in zip(*areas.parts.values())]
    one = found.devices[0].allocated
    assert (drawn[0], max(drawn), drawn[-1]) == tuple(one.values())
    before = stratalloc.telemetry_level("events")
    try:
        assert shown()[0].run is not None
    finally:
        stratalloc.telemetry_level(before)
    assert shown()[0].run is None


def test_names_are_text(run, shell):
    run("""\
        %%gpumem --trace --peak -o found
        with stratalloc.scope("(<script>alert(1)</script>&'\\""):
            kept = tensor(1)
        stratalloc.mark("</svg><script>alert(2)</script>")
        """)
    html = shell.user_ns["found"]._repr_html_()
    assert "<script" not in html and "&lt;script&gt;alert(1)" in html
    assert "&lt;script&gt;alert(2)" in html
    assert len(_pictures(shell.user_ns["found"])) == 1


def test_now(run):
    run("kept = [tensor(2), tensor(1, 1)]")
    text = run("%gpumem").text
    assert re.search(r"stratalloc, device 0.*allocated +2 MiB.*"
                     r"device 0 now +bytes.*\(no scope\) +2 MiB.*"
                     r"stratalloc, device 1.*\(no scope\) +1 MiB", text,
                     re.DOTALL)
    assert "device 1 at its peak" in run("%gpumem --peak").text


def test_pictures_pass_terminals_over(run):
    assert "svg" not in run("%%gpumem --trace\ntensor(1);").text


def test_resets_are_heard_once_per_program():
    """Whoever listens last is put back first, and a name that torch lacks is
    no error."""
    noted = []
    one = _resets.before_each(torch, lambda: noted.append("one"))
    two = _resets.before_each(torch, lambda: noted.append("two"))
    torch.cuda.reset_peak_memory_stats()
    two.put_back()
    torch.cuda.reset_peak_memory_stats()
    one.put_back()
    torch.cuda.reset_peak_memory_stats()
    assert noted == ["two", "one", "one"]
    assert torch._C._cuda_resetPeakMemoryStats is RESET


def test_times_are_for_people():
    assert list(map(_plot_svg.shown_time, (
        0, 999, 1500, 12345678, 999 * 10 ** 6, 61 * 10 ** 9,
        7200 * 10 ** 9))) == ["0 ns", "999 ns", "1.5 µs", "12.3 ms", "999 ms",
                              "61 s", "7200 s"]
