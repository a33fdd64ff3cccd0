# SPDX-License-Identifier: Apache-2.0
"""The page of a real training run in a browser: it asks nobody for anything, says
nothing to the console, can be used without a mouse and read in both themes."""

import json
import pathlib
import shutil

import numpy as np
import pytest

import browser
import made_runs
from bazel import programs
from stratalloc._rendering import plot_svg as _plot_svg
from stratalloc.telemetry import files, model, replay
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.report import page
from stratalloc.telemetry.report.data import data
from stratalloc.telemetry.report.residency import residency

_HERE = pathlib.Path(__file__).parent
_AUDIT = (_HERE / "page_audit.js").read_text(encoding="utf-8")
PANELS = ["timeline", "flame", "tiers", "reserved", "addresses", "layers",
          "moves", "leaks", "blocks", "settings"]


@pytest.fixture(name="chromium", scope="module")
def _chromium():
    assert shutil.which("chromium"), (
        "chromium is missing: run ./dev setup")
    with browser.chromium() as found:
        yield found


@pytest.fixture(name="recording", scope="module")
def _recording(tmp_path_factory):
    """Of a model in training that its card has no room for."""
    path = tmp_path_factory.mktemp("run") / "run.strata"
    done = programs.run(
        "-m", "stratalloc", "run", "--simulate", "24MiB", "--conf",
        "telemetry:full", "--record", path, _HERE / "trained.py")
    assert done.returncode == 0, done.stderr
    return files.load(path)


@pytest.fixture(name="trained", scope="module")
def _trained(recording, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "run.html"
    page.write(data([("run.strata", recording)]), path)
    return path


def _made(folder, *runs):
    path = folder / "made.html"
    page.write(data(list(runs)), path)
    return path


def test_no_byte_of_a_layer_is_lost_between_the_tiers(recording):
    """Parameters are there from the first step on, wherever they are."""
    walked = replay.Replay(recording, 0)
    marks = [i for i, kind in enumerate(recording.events["kind"].tolist())
             if kind == Kind.MARK]

    def parameters(moment):
        return {row[0]: sum(row[2:]) for row in residency(walked, moment, 9999)
                if row[1] == "parameter"}
    first = parameters(marks[0])
    assert len(marks) == 14 and sum(first.values()) > 7 << 20
    assert any(row[3] for row in residency(walked, marks[5], 9999))
    moves = np.flatnonzero(recording.events["kind"] == Kind.MOVE)
    moves = moves[(moves > marks[0]) & (moves < marks[-1])]
    for moment in (*marks, *moves[::max(1, len(moves) // 10)].tolist()):
        assert parameters(moment) == first, moment


@pytest.mark.parametrize("dark", [False, True])
def test_a_training_run_is_seen_in_either_theme(chromium, trained, dark):
    with chromium.page(trained, dark=dark) as shown:
        assert [one for one in shown.run(
            "[...document.querySelectorAll('main > section')].map(n => n.id)"
        )] == PANELS
        shown.run("document.querySelectorAll('details').forEach("
                  "(node) => { node.open = true; })")
        assert shown.run(_AUDIT) == []
        background = shown.run(_COLOR)
        assert (sum(background) < 150) is dark
        # The switch turns it around.
        shown.run("document.querySelector('#top button').click()")
        assert (sum(shown.run(_COLOR)) < 150) is not dark
        assert shown.run(_AUDIT) == []
        assert shown.complaints() == []


def test_the_theme_is_the_readers_until_it_is_switched(chromium, trained):
    with chromium.page(trained) as shown:
        def system(dark):
            shown.call("Emulation.setEmulatedMedia", features=[{
                "name": "prefers-color-scheme",
                "value": "dark" if dark else "light"}])
            # The page hears of it with its next style: it is asked again.
            for _ in range(100):
                found = (sum(shown.run(_COLOR)) < 150, shown.run(
                    "document.querySelector('#top button').ariaPressed"))
                if found == (dark, str(dark).lower()):
                    break
            return found
        assert [system(one) for one in (True, False, True)] == [
            (True, "true"), (False, "false"), (True, "true")]
        shown.run("document.querySelector('#top button').click()")
        assert [system(one) for one in (True, False, True)] == [
            (False, "false")] * 3
        assert shown.complaints() == []


def test_categories_have_the_colours_of_notebooks(chromium, trained):
    for dark in (False, True):
        with chromium.page(trained, dark=dark) as shown:
            found = shown.run(
                "[...document.querySelectorAll('#flame .drawing button')]"
                ".filter(one => !one.classList.contains('plain')).map(one =>"
                " [one.ariaLabel.split(':')[0],"
                " getComputedStyle(one).backgroundColor])")
        wanted = {name: "rgb({}, {}, {})".format(*bytes.fromhex(one[1:]))
                  for name, one in _plot_svg.colours_of(
                      model.CATEGORIES).items()}
        assert len(found) > 10
        assert all(colour == wanted[name] for name, colour in found), found


_COLOR = ("getComputedStyle(document.body).backgroundColor.match(/\\d+/g)"
          ".map(Number)")


def test_drawings_have_what_the_data_has(chromium, trained, recording):
    told = data([("run.strata", recording)])["runs"][0]["devices"][0]
    with chromium.page(trained) as shown:
        assert shown.run("document.querySelectorAll('#timeline path.area')"
                         ".length") == sum(any(values) for values in told[
                             "timeline"]["categories"].values())
        assert shown.run("document.querySelectorAll('#timeline path.mark')"
                         ".length") == 14
        assert shown.run("document.querySelectorAll('#moves .lane .bars')"
                         ".length") == len(told["moves"]["lanes"]) >= 3
        assert shown.run("document.querySelectorAll('#layers tbody tr')"
                         ".length") == len(told["layers"]["rows"])
        # Names are what they are.
        assert shown.run("[...document.querySelectorAll('#flame .plain')]"
                         ".filter(n => n.textContent && !n.ariaLabel"
                         ".startsWith(n.textContent)).length") == 0
        # A sort by a head's button, and back.
        first = "document.querySelector('#layers tbody th').textContent"
        shown.run("document.querySelector('#layers thead button').click()")
        assert shown.run(first) == min(
            (row[0] for row in told["layers"]["rows"]), key=str.lower)
        assert shown.run("document.querySelector('#layers th[aria-sort]')"
                         ".getAttribute('aria-sort')") == "ascending"
        shown.run("(() => { const box = document.querySelector('#layers input');"
                  " box.value = 'embed'; box.dispatchEvent(new Event('input'));"
                  " })()")
        assert shown.run("[...document.querySelectorAll('#layers tbody th')]"
                         ".map(n => n.textContent)") == ["Words.embed"]
        assert shown.complaints() == []


def _focused(shown):
    return shown.run(
        "(() => { const a = document.activeElement; return [a.tagName,"
        " a.closest('section')?.id || '', a.getAttribute('aria-label')"
        " || a.textContent.slice(0, 40)]; })()")


def test_keys_reach_everything_and_tell_of_a_block(chromium, trained):
    with chromium.page(trained, reduced=True) as shown:
        stops = []
        for _ in range(400):
            shown.key("Tab")
            stops.append(_focused(shown))
            if stops[-1][0] == "BODY":
                break
        # A drawing is one stop, however many shapes it has.
        assert len(stops) < 120
        inside = [one[1] for one in stops]
        for panel in PANELS[:-3] + ["settings"]:
            assert panel in inside, panel
        tags = {(tag, panel) for tag, panel, _ in stops}
        for stop in (("INPUT", "timeline"), ("BUTTON", "flame"),
                     ("SELECT", "tiers"), ("BUTTON", "addresses"),
                     ("BUTTON", "moves"), ("INPUT", "layers")):
            assert stop in tags
        # Arrows go through the shapes, Enter tells.
        shown.run("document.querySelector('#flame .drawing button').focus()")
        shown.key("ArrowRight")
        assert "of the peak" in _focused(shown)[2]
        shown.key("Enter")
        assert shown.run("document.querySelectorAll('#flame p button').length")
        shown.run("document.querySelector('#addresses button[aria-label*="
                  "\"allocated\"]').focus()")
        shown.key("Enter")
        told = shown.run("document.querySelector('#addresses .details')"
                         ".textContent")
        assert "asked for" in told and "trained.py" in told
        assert shown.run("document.querySelectorAll('[aria-pressed=true]')"
                         ".length") == 1
        assert shown.run("getComputedStyle(document.documentElement)"
                         ".scrollBehavior") == "auto"
        assert shown.complaints() == []


def test_a_block_without_a_stack_says_why(chromium, tmp_path):
    run = made_runs.called(450, 30)
    with chromium.page(_made(tmp_path, ("run", run))) as shown:
        def said(size):
            shown.run("document.querySelector('#addresses button[aria-label^="
                      f"\"{size} of net\"]').click()")
            return shown.run("document.querySelector('#addresses .details')"
                             ".textContent")
        largest = said("225.5 KiB")
        assert "/p/own.py:450 f" in largest and "/p/8.py" in largest
        assert "7 outer frames more than this page has room for" in largest
        assert "no room for its stack" in said("1 KiB")
        assert "level events records none" in said("512 B")
        shown.run("document.querySelectorAll('details').forEach("
                  "(node) => { node.open = true; })")
        assert shown.run(_AUDIT) == [] and shown.complaints() == []


def test_names_that_look_like_places_are_what_they_are(chromium, tmp_path):
    names = ["@0", 'quoted"@1', "back\\", "@@2", "\u2028 and <b>"]
    maker = made_runs.Maker(names)
    for scope in range(1, 1 + len(names)):
        maker.alloc(4096 * scope, scope, 1)
    with chromium.page(_made(tmp_path, ("@1", maker.finish()))) as shown:
        assert shown.run("[...document.querySelectorAll('#layers tbody th')]"
                         ".map(n => n.textContent)") == names[::-1]
        assert "@1" in shown.run("document.title")
        assert shown.complaints() == []


def test_a_narrow_window_cuts_nothing_off(chromium, trained):
    with chromium.page(trained, width=420) as shown:
        assert shown.run("document.documentElement.scrollWidth") <= 420
        assert shown.run(_AUDIT) == []


def test_a_hostile_name_stays_text(chromium, tmp_path):
    name = made_runs.HOSTILE[0]
    with chromium.page(_made(tmp_path, (name, made_runs.hostile()))) as shown:
        shown.run("document.querySelectorAll('details').forEach("
                  "(node) => { node.open = true; })")
        assert shown.run("document.querySelectorAll('script').length") == 2
        assert name in shown.run("document.body.innerText")
        assert name in shown.run("document.title")
        assert shown.run(_AUDIT) == []
        assert shown.complaints() == []
        dialogs = [one for one in chromium.events
                   if one["method"] == "Page.javascriptDialogOpening"]
        assert dialogs == []
        # What would get in by another way is not let run, nor fetched.
        shown.run("(() => { const node = document.createElement('script');"
                  " node.textContent = 'window.ran = 1';"
                  " document.body.append(node);"
                  " new Image().src = 'http://127.0.0.1:9/x'; })()")
        assert shown.run("window.ran === undefined")
        assert any("Content Security Policy" in one
                   for one in shown.complaints())


def test_nothing_is_a_page_and_several_are_side_by_side(chromium, tmp_path):
    with chromium.page(_made(tmp_path, ("none", model.Run()))) as shown:
        said = shown.run("document.body.innerText")
        assert "Nothing was recorded" in said
        assert "no memory of a device was allocated" in said
        assert shown.complaints() == []
    runs = [(f"rank{i}", made_runs.make(i, 100)[0]) for i in range(3)]
    runs.append(("cards", made_runs.devices()))
    with chromium.page(_made(tmp_path, *runs)) as shown:
        assert shown.run("document.querySelectorAll('#ranks tbody tr')"
                         ".length") == 5
        shown.run("(() => { const one = document.querySelector('#top select');"
                  " one.value = '3';"
                  " one.dispatchEvent(new Event('change')); })()")
        assert shown.run("document.querySelectorAll('#top select').length") == 2
        shown.run("document.querySelectorAll('details').forEach("
                  "(node) => { node.open = true; })")
        assert shown.run(_AUDIT) == []
        assert shown.complaints() == []


def test_two_are_compared_with_each_other(chromium, tmp_path):
    runs = []
    for rank, size in enumerate((100, 120)):
        maker = made_runs.Maker()
        maker.alloc(size << 10, 1, 1)
        runs.append((f"rank{rank}", maker.finish()))
    with chromium.page(_made(tmp_path, *runs)) as shown:
        said = shown.run("document.querySelector('#ranks').innerText")
        assert "The peak of rank1 device 0 is 20.0 % above the other" in said
        assert "which is 100 KiB" in said and "From the smaller" in said
        assert shown.complaints() == []


def test_the_data_can_be_taken_away(chromium, trained, tmp_path, recording):
    chromium.call("Browser.setDownloadBehavior", behavior="allow",
                  downloadPath=str(tmp_path), eventsEnabled=True)
    with chromium.page(trained) as shown:
        shown.run("document.querySelector('#bottom button').click()")
        while not any(one["method"] == "Browser.downloadProgress" and
                      one["params"]["state"] == "completed"
                      for one in chromium.events):
            chromium.call("Browser.getVersion")
        assert shown.complaints() == []
    with open(tmp_path / "stratalloc-report.json", encoding="utf-8") as file:
        assert json.load(file) == json.loads(json.dumps(
            data([("run.strata", recording)])))
