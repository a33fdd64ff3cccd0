# SPDX-License-Identifier: Apache-2.0
"""The compat modules under the documents' names, with packages placed for it:
one object by both names, and whoever else has a name keeps it."""

import importlib
import importlib.util
import logging
import os
import pickle
import pkgutil
import sys

import pytest

import stratalloc.compat
from stratalloc.compat import _names

_NAMES = ("gpu_optimizer", "memlord", "memory_management")


@pytest.fixture(name="_standing", autouse=True)
def _standing_in(tmp_path, monkeypatch):
    """Packages of the three names below stratalloc.compat, each with a
    submodule, a class and a count of how often it was run."""
    for name in _NAMES:
        package = tmp_path / "ours" / name
        (package / "parts").mkdir(parents=True)
        (package / "__init__.py").write_text(
            "import builtins\n"
            "builtins.runs = getattr(builtins, 'runs', 0) + 1\n"
            "class Thing:\n    pass\n")
        (package / "parts" / "__init__.py").write_text(
            "import builtins\n"
            "builtins.runs = getattr(builtins, 'runs', 0) + 1\n"
            "class Part:\n    pass\n")
    monkeypatch.setattr(stratalloc.compat, "__path__",
                        [str(tmp_path / "ours"), *stratalloc.compat.__path__])
    before = list(sys.meta_path)
    _forget()
    yield
    stratalloc.compat.uninstall()
    _forget()
    assert sys.meta_path == before
    import builtins
    builtins.__dict__.pop("runs", None)


def _forget():
    for name in list(sys.modules):
        if any(name.startswith(prefix + each) for each in _NAMES
               for prefix in ("", "stratalloc.compat.")):
            del sys.modules[name]
    for name in _NAMES:
        vars(stratalloc.compat).pop(name, None)


def _other(folder, name):
    """Another's package of that name, in a folder of its own."""
    package = folder / "others" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("WHOSE = 'theirs'\n")
    (package / "parts.py").write_text("WHOSE = 'theirs'\n")
    return str(folder / "others")


def test_every_module_that_is_here_has_its_name():
    here = {found.name for found in pkgutil.iter_modules(
        [os.path.dirname(stratalloc.compat.__file__)])
        if not found.name.startswith("_") and found.name != "tests"}
    assert here <= set(_names.NAMES) == set(_NAMES)


def test_before_there_is_no_such_name():
    for name in _NAMES:
        assert importlib.util.find_spec(name) is None


def test_both_names_are_one_module_run_once():
    assert stratalloc.compat.install() == {
        name: "stratalloc.compat." + name for name in _NAMES}
    assert not any(name in sys.modules for name in _NAMES)
    for name in _NAMES:
        theirs = importlib.import_module(name)
        ours = importlib.import_module("stratalloc.compat." + name)
        assert theirs is ours and theirs.Thing is ours.Thing
        assert ours.__spec__.name == ours.__name__ == (
            "stratalloc.compat." + name)
        assert importlib.reload(theirs) is ours
    import builtins
    assert builtins.runs == 6  # each of the three, and its reload


@pytest.mark.parametrize("first", ("memlord", "stratalloc.compat.memlord"))
def test_submodules_are_one_module_whoever_comes_first(first):
    stratalloc.compat.install()
    second = ({"memlord", "stratalloc.compat.memlord"} - {first}).pop()
    one = importlib.import_module(first + ".parts")
    other = importlib.import_module(second + ".parts")
    assert one is other and one.__name__ == "stratalloc.compat.memlord.parts"
    import builtins
    assert builtins.runs == 2
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("memlord.none_of_that")


def test_a_pickle_by_either_name_loads():
    stratalloc.compat.install()
    import memlord
    import memlord.parts

    for thing in (memlord.Thing(), memlord.parts.Part()):
        loaded = pickle.loads(pickle.dumps(thing))
        assert type(loaded) is type(thing)
    by_their_name = b"cmemlord.parts\nPart\n(tR."  # as the original wrote it
    assert type(pickle.loads(by_their_name)) is memlord.parts.Part


def test_twice_is_once_and_uninstalled_is_gone():
    stratalloc.compat.install()
    import memlord.parts
    found = list(sys.meta_path)
    assert stratalloc.compat.install()["memlord"] == (
        "stratalloc.compat.memlord")
    _names.append()
    assert sys.meta_path == found
    stratalloc.compat.uninstall()
    stratalloc.compat.uninstall()
    with pytest.raises(ModuleNotFoundError):
        import memlord  # noqa: F811
    assert "stratalloc.compat.memlord.parts" in sys.modules


def test_an_import_that_is_under_way_meets_every_finder():
    stratalloc.compat.install()
    import memlord.parts  # noqa: F401: now there are finders at both ends

    walked = sys.meta_path
    before = list(walked)
    met = []
    for finder in walked:  # as an import does
        met.append(finder)
        stratalloc.compat.uninstall()
    assert met == before
    assert sys.meta_path == [finder for finder in before if not hasattr(
        finder, "stratalloc_names")]


def test_an_installed_original_keeps_its_name_and_its_submodules(
        tmp_path, monkeypatch, caplog):
    monkeypatch.syspath_prepend(_other(tmp_path, "memlord"))
    with caplog.at_level(logging.WARNING, "stratalloc"):
        said = stratalloc.compat.install()
    where = str(tmp_path / "others" / "memlord" / "__init__.py")
    assert said["memlord"] == where
    assert said["gpu_optimizer"] == "stratalloc.compat.gpu_optimizer"
    line, = caplog.messages
    assert where in line and "ours is stratalloc.compat.memlord" in line
    importlib.import_module("gpu_optimizer.parts")  # in front there is one now
    theirs = importlib.import_module("memlord.parts")
    ours = importlib.import_module("stratalloc.compat.memlord.parts")
    assert theirs.WHOSE == "theirs" and ours is not theirs
    assert stratalloc.compat.install()["memlord"] == where
    stratalloc.compat.uninstall()
    assert "memlord" in sys.modules and "gpu_optimizer" not in sys.modules


def test_a_finder_that_comes_later_wins_as_an_editable_install_does(
        tmp_path, monkeypatch):
    stratalloc.compat.install()
    folder = _other(tmp_path, "memlord")

    class Editable:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name != "memlord":
                return None
            return importlib.util.spec_from_file_location(
                name, f"{folder}/memlord/__init__.py",
                submodule_search_locations=[f"{folder}/memlord"])

    monkeypatch.setattr(sys, "meta_path", sys.meta_path + [Editable])
    assert stratalloc.compat.install()["memlord"].startswith(folder)
    assert importlib.import_module("memlord.parts").WHOSE == "theirs"
    stratalloc.compat.uninstall()
    monkeypatch.undo()
    stratalloc.compat.uninstall()


def test_a_name_that_is_forbidden_stays_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "memlord", None)
    assert stratalloc.compat.install()["memlord"] is None


def test_without_stratalloc_there_is_no_such_name(monkeypatch):
    stratalloc.compat.install()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="'memlord'"):
        import memlord  # noqa: F401
