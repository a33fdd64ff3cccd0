# SPDX-License-Identifier: Apache-2.0
"""What a process answers is looked at once; what is wrong is a sentence."""

import contextlib
import copy
import json
import os
import socket

import pytest

from python_shim.stratalloc._live.tests import live_samples
from stratalloc._live import client, shape, top, view

_GOOD = {**live_samples.sample(0, live_samples.device(uuid="1", ooms=1)),
         "events": {"recorded": 1, "lost": 0}}


def _places(value, before=()):
    """Where everything in a sample is, the layers' categories aside."""
    for key, inner in (value.items() if isinstance(value, dict)
                       else enumerate(value)):
        yield (*before, key)
        if isinstance(inner, (dict, list)) and key != "categories":
            yield from _places(inner, (*before, key))


def _changed(place, *value):
    """A sample with a value put there, or nothing."""
    made = copy.deepcopy(_GOOD)
    inner = made
    for key in place[:-1]:
        inner = inner[key]
    if value:
        inner[place[-1]] = value[0]
    else:
        del inner[place[-1]]
    return made


def _used(sample):
    seen = view.View()
    for at in (0, 1):
        sample = {**sample, "clock_ns": sample["clock_ns"] + at}
        seen.add(sample, top._cards(sample))
    for seen.order in view.ORDERS:
        seen.page(80, 24, "keys").text()
    seen.strip(80)
    view.listed([(1, "", sample)])


@contextlib.contextmanager
def _answering(tmp_path, monkeypatch, answer):
    monkeypatch.chdir(tmp_path)  # a socket's path has 107 bytes
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind("s")
        listener.listen()
        question = client.Question(os.getpid(), "s")
        with contextlib.closing(question), listener.accept()[0] as connected:
            connected.sendall(answer + b"\n")
            yield question


def test_a_sample_is_one_and_what_is_not_known_is_let_through():
    assert shape.wrong(_GOOD) is None
    assert shape.wrong({**_GOOD, "newer": [None]}) is None
    for key in ("host", "disk", "events"):
        assert shape.wrong({**_GOOD, key: None}) is None
    assert shape.wrong(_changed(("devices", 0, "layers", 0, "moved"),
                                None)) is None


@pytest.mark.parametrize("value", [
    (), ({},), ([],), ([{}],), ("\x1b[2J",), (True,), (1.5,), (1 << 64,),
    (None,), (float("nan"),)], ids=repr)
def test_whatever_is_let_through_can_be_shown(value):
    """Nothing that is changed in a sample, anywhere, is a traceback."""
    refused = 0
    for place in _places(_GOOD):
        if not value and isinstance(place[-1], int):
            continue  # a list that is shorter
        sample = _changed(place, *value)
        if shape.wrong(sample) is None:
            _used(sample)
        else:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("answer, said", [
    ({"version": 1}, "no sample of this protocol: command is missing"),
    ({**_GOOD, "devices": [{}]}, r"devices\[0\].name is missing or of another"),
    (_changed(("devices", 0, "layers", 1, "disk"), "x"),
     r"devices\[0\].layers\[1\].disk is missing or of another type"),
    ({"version": True}, "no answer of this protocol"),
    ({"version": "\x1b[2J"}, "no answer of this protocol")])
def test_what_is_no_sample_is_a_sentence(tmp_path, monkeypatch, answer, said):
    with _answering(tmp_path, monkeypatch, json.dumps(answer).encode()) as one:
        with pytest.raises(client.AttachError, match=said):
            one.wait()


def test_a_sentence_of_the_process_moves_no_cursor(tmp_path, monkeypatch):
    answer = json.dumps({"version": 1, "error": "a\x1b[2J\x9b\nb\ud800"})
    with _answering(tmp_path, monkeypatch, answer.encode()) as question:
        with pytest.raises(client.AttachError) as error:
            question.wait()
    assert str(error.value) == "a?[2J??b?"


def test_json_of_what_is_no_sample_is_a_sentence(tmp_path, monkeypatch, capsys):
    class Arguments:
        pid, interval, once, json = None, "1", False, object()

    answer = json.dumps({**_GOOD, "devices": [{}]}).encode()
    with _answering(tmp_path, monkeypatch, answer) as question:
        monkeypatch.setattr(client, "ask", lambda *_: question.wait())
        monkeypatch.setattr(top, "_chosen", lambda _: (os.getpid(), "s"))
        assert top.main(Arguments) == 1
    assert "devices[0].name is missing" in capsys.readouterr().err
