# SPDX-License-Identifier: Apache-2.0
"""Pages of reports: names stay text, ranks stand side by side, and the command
that writes them."""

import html.parser
import json
import os
import stat

import pytest

import made_recordings
import made_runs
from report_data import MIB
from stratalloc.cli import command_line as cli
from stratalloc.telemetry import model, recording
from stratalloc.telemetry.report import page
from stratalloc.telemetry.report.data import data
from stratalloc.telemetry.report.packed import unpacked


class _Elements(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found, self.inside, self.scripts = [], False, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_data(self, data_):
        if self.inside:
            self.scripts[-1] += data_

    def handle_endtag(self, tag):
        self.inside = False


def test_names_that_would_run_are_text_in_the_file():
    told = data([(made_runs.HOSTILE[0], made_runs.hostile())])
    found = _Elements(page.page(told))
    plain = _Elements(page.page(data([("run", model.Run())])))
    assert found.found == plain.found
    assert found.found.count("script") == 2
    assert "<" not in found.scripts[0]
    # JSON is what it was, and ends where its element does.
    assert unpacked(found.scripts[0]) == json.loads(json.dumps(told))
    assert "<script>alert(1)</script>" in str(told)
    assert found.scripts[1] == plain.scripts[1]


def test_nothing_is_a_page_that_says_so():
    told = data([("run", model.Run())])
    assert told["runs"][0]["devices"] == []
    assert told["runs"][0]["verdict"]["kind"] == "nothing"
    assert page.page(told)


def test_settings_are_what_json_has():
    run = made_runs.story()
    run.settings = {"a": 1, "b": float("nan"), "c": [1], "d": True, "e": None,
                    "f": "x" * 999, "g": .5}
    told = data([("run", run)])["runs"][0]["settings"]
    assert list(told) == ["a", "d", "e", "f", "g"] and len(told["f"]) < 170
    assert page.page(data([("run", run)]))


def test_ranks_are_side_by_side_and_the_odd_one_is_told():
    runs = []
    for rank in range(5):
        maker = made_runs.Maker()
        maker.alloc(4 * MIB if rank == 3 else 2 * MIB, 1, 1)
        runs.append((f"rank{rank}", maker.finish()))
    told = data(runs)
    assert [row["run"] for row in told["ranks"]] == [one for one, _ in runs]
    assert [row["off"] for row in told["ranks"]] == [0, 0, 0, 1000, 0]
    assert told["ranks"][3]["categories"] == {"parameter": 4 * MIB}
    assert data(runs[:1])["ranks"] == []
    assert data([runs[0], ("none", model.Run())])["ranks"] == []
    assert len(data([("two", made_runs.devices())])["ranks"]) == 2


@pytest.mark.parametrize("sizes, wanted", [
    ((100, 120), (0, 200)), ((130, 100), (300, 0)), ((100, 109), (0, 90)),
    ((0, 100), (0, None)), ((0, 0), (0, 0)), ((1000, 1100), (0, 100)),
    ((100, 100, 130, 130), (0, 0, 300, 300)), ((100, 85, 120), (0, -150, 200)),
    ((10000, 10999), (0, 99))])
def test_a_peak_is_compared_with_one_that_was(sizes, wanted):
    runs = []
    for rank, size in enumerate(sizes):
        maker = made_runs.Maker()
        if size:
            maker.alloc(512 * size, 1, 1)
        else:
            maker.segment(2 * MIB)
        runs.append((f"rank{rank}", maker.finish()))
    assert tuple(row["off"] for row in data(runs)["ranks"]) == wanted


# The command.


@pytest.fixture(name="file")
def _file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "r.strata"
    path.write_bytes(made_recordings.file_of(*made_recordings.two_blocks()))
    return path


def _told(capfd, *argv):
    code = cli.main(["report", *map(str, argv)])
    said = capfd.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def test_a_page_is_the_users_alone_and_says_its_verdict(capfd, file):
    code, out, error = _told(capfd, file)
    assert (code, error) == (0, "") and "of the card's 1 MiB" in out
    made = file.parent / "report.html"
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert unpacked(_Elements(made.read_text()).scripts[0]) == json.loads(
        json.dumps(data([("r.strata", recording.read(file))])))


def test_machines_get_the_data_of_every_file(capfd, file):
    (file.parent / "two").mkdir()
    other = file.parent / "two" / "r.strata"
    other.write_bytes(file.read_bytes())
    code, _, _ = _told(capfd, "r.strata", "two/r.strata", "-o", "a.html",
                       "--json", "a.json")
    assert code == 0
    with open("a.json", encoding="utf-8") as made:
        told = json.load(made)
    assert [one["name"] for one in told["runs"]] == [
        "r.strata", "two/r.strata"]
    assert len(told["ranks"]) == len(told["recording"]) == 2
    assert told["path"] == "a.html"


@pytest.mark.parametrize("words, code, says", [
    (["FILE", "-o", "FILE"], 2, "which would be lost"),
    (["other", "FILE", "-o", "FILE"], 2, "which would be lost"),
    (["FILE", "--json", "FILE"], 2, "which would be lost"),
    (["FILE", "--json", "report.html"], 2, "-o's file, too"),
    (["FILE", "-o", "-"], 2, "give the name of a file"),
    (["FILE", "-o", "no/such/x.html"], 1, "cannot be written"),
    (["nope"], 2, "there is no file nope"), ([], 2, "Missing"),
    (["FILE", "text"], 1, "text is neither a recording nor a snapshot")])
def test_what_cannot_be_done_is_said_and_nothing_is_lost(capfd, file, words,
                                                         code, says):
    before = file.read_bytes()
    (file.parent / "other").write_bytes(before)
    (file.parent / "text").write_text("no recording")
    got, out, error = _told(capfd, *(
        str(file) if word == "FILE" else word for word in words))
    assert (got, out) == (code, "") and says in error
    assert file.read_bytes() == before
    assert sorted(os.listdir()) == ["other", "r.strata", "text"]


def test_what_is_missing_is_said_beside_it_and_in_it(capfd, file):
    head, events = made_recordings.two_blocks()
    head.update(overwritten=7, complete_from=30)
    file.write_bytes(made_recordings.file_of(head, events))
    code, out, error = _told(capfd, file)
    assert code == 0 and "7 events are missing" in error
    assert "7 events are missing" in out
    told = _Elements((file.parent / "report.html").read_text()).scripts[0]
    assert unpacked(told)["runs"][0]["missing"].startswith("7 events")
