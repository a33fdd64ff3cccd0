# SPDX-License-Identifier: Apache-2.0
"""Modules that are waited for, in every way in which they may be found.

Without torch and without a device.
"""

import contextlib
import importlib
import importlib.machinery
import importlib.resources
import importlib.util
import inspect
import itertools
import sys
import textwrap
import threading

import pytest

from stratalloc._hooks import (import_hook as _import_hook,
                               patching as _patching)

SECONDS = 60  # until a test gives up

_numbers = itertools.count()


@pytest.fixture
def write(tmp_path, monkeypatch):
    """write(text) -> the name of a new module."""
    monkeypatch.syspath_prepend(str(tmp_path))
    written = []

    def write(text, package=False):
        name = f"awaited_module_{next(_numbers)}"
        written.append(name)
        path = tmp_path / f"{name}.py"
        if package:
            (tmp_path / name).mkdir()
            path = tmp_path / name / "__init__.py"
            (tmp_path / name / "data.txt").write_text("a resource")
        path.write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


@pytest.fixture
def made():
    """A _patching.Replaced, put back at the end as every other."""
    before = list(sys.meta_path)
    made = _patching.Replaced()
    yield made
    made.put_back()
    assert sys.meta_path == before


def test_a_module_is_executed_in_what_goes_around(write):
    name = write("import sys\nseen = list(sys.around)\nraise_ = 1 / sys.zero")
    sys.around, sys.zero = [], 0

    @contextlib.contextmanager
    def around():
        sys.around.append("in")
        try:
            yield
        finally:
            sys.around.append("out")

    awaited = _import_hook.AwaitedModule(name, lambda module: None,
                                         around=around)
    awaited.begin()
    try:
        with pytest.raises(ZeroDivisionError):
            importlib.import_module(name)
        assert sys.around == ["in", "out"]
        sys.zero = 1
        assert importlib.import_module(name).seen == ["in", "out", "in"]
        assert sys.around == ["in", "out", "in", "out"]
    finally:
        awaited.end()
        del sys.around, sys.zero


TEXT = """
class Target:
    def name(self):
        return "theirs"
"""


def wait_for(made, name):
    """Replaces Target.name; the modules that were prepared."""
    prepared = []

    def prepare(module):
        made.replace(module.Target, "name", lambda original: lambda self: "ours")
        prepared.append(module)

    made.when_imported(name, prepare)
    return prepared


def test_asking_for_the_spec_loses_nothing(made, write):
    name = write(TEXT)
    prepared = wait_for(made, name)
    for _ in range(2):
        assert importlib.util.find_spec(name) is not None
    assert name not in sys.modules and prepared == []
    module = importlib.import_module(name)
    assert prepared == [module] and module.Target().name() == "ours"
    made.put_back()
    assert module.Target().name() == "theirs"


@pytest.mark.parametrize("package", [False, True])
def test_the_loader_answers_as_the_modules_own(made, write, package):
    name = write(TEXT, package)
    own = importlib.util.find_spec(name).loader
    wait_for(made, name)
    loader = importlib.util.find_spec(name).loader
    assert isinstance(loader, importlib.machinery.SourceFileLoader)
    assert loader.get_source(name) == own.get_source(name) == TEXT
    assert loader.get_code(name) == own.get_code(name)
    assert loader.is_package(name) is package
    assert loader.get_filename(name) == loader.path == own.path
    assert loader.get_data(loader.path) == TEXT.encode()
    assert not hasattr(loader, "of_nobody")
    if package:
        reader = loader.get_resource_reader(name)
        assert reader.open_resource("data.txt").read() == b"a resource"
        files = importlib.resources.files(name)
        assert files.joinpath("data.txt").read_text() == "a resource"
    module = importlib.import_module(name)
    assert type(module.__loader__) is type(own)
    assert module.__spec__.loader is module.__loader__
    assert inspect.getsource(module.Target) == TEXT.lstrip()


def test_an_import_that_failed_may_be_tried_again(made, write):
    name = write("""
        import sys
        if not hasattr(sys, "awaited_module_may_load"):
            raise ImportError("not yet")
        """ + textwrap.indent(TEXT, " " * 8))
    prepared = wait_for(made, name)
    for _ in range(2):
        with pytest.raises(ImportError, match="not yet"):
            importlib.import_module(name)
    assert prepared == []
    sys.awaited_module_may_load = True
    try:
        module = importlib.import_module(name)
    finally:
        del sys.awaited_module_may_load
    assert prepared == [module] and module.Target().name() == "ours"


def test_what_is_reloaded_is_prepared_anew(made, write):
    for imported_before in (False, True):
        name = write(TEXT)
        if imported_before:
            importlib.import_module(name)
        prepared = wait_for(made, name)
        module = importlib.import_module(name)
        old = module.Target
        for _ in range(2):
            assert importlib.reload(module) is module
            assert module.Target is not old
            assert module.Target().name() == "ours"
        assert prepared == [module] * 3
        # And forgotten and imported again.
        del sys.modules[name]
        again = importlib.import_module(name)
        assert again is not module and again.Target().name() == "ours"
        made.put_back()
        for cls in (old, module.Target, again.Target):
            assert cls().name() == "theirs"


def test_who_executes_a_spec_by_hand_or_late(made, write):
    name = write(TEXT)
    prepared = wait_for(made, name)
    spec = importlib.util.find_spec(name)
    by_hand = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(by_hand)
    assert prepared == [by_hand]
    spec = importlib.util.find_spec(name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    late = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(late)
    assert prepared == [by_hand]
    assert late.Target().name() == "ours"
    assert prepared == [by_hand, late]


def test_two_who_wait_for_one_module(made, write):
    name = write(TEXT)
    others = _patching.Replaced()
    both = wait_for(made, name), []
    others.when_imported(name, both[1].append)
    try:
        module = importlib.import_module(name)
    finally:
        others.put_back()
    assert both == ([module], [module])
    missing = "awaited_module_of_nobody"
    wait_for(made, missing)
    assert importlib.util.find_spec(missing) is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(missing)


def test_threads_that_import_at_once(made, write):
    for _ in range(20):
        name = write(TEXT)
        prepared = wait_for(made, name)
        barrier = threading.Barrier(4)
        seen = []

        def run():
            barrier.wait(SECONDS)
            importlib.util.find_spec(name)
            seen.append(importlib.import_module(name).Target().name())

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == ["ours"] * 4
        assert len(prepared) == 1


def test_who_waits_in_the_middle_of_an_import(made, write, monkeypatch):
    """begin() on one thread while another executes the module."""
    name = write("""
        import sys
        inside, go_on = sys.awaited_module_events
        inside.set()
        assert go_on.wait(60), "nobody waited for the end of the import"
        """ + textwrap.indent(TEXT, " " * 8))
    inside, go_on = sys.awaited_module_events = (threading.Event(),
                                                 threading.Event())
    wait = importlib._bootstrap._lock_unlock_module

    def waits(module):
        go_on.set()
        wait(module)

    monkeypatch.setattr(importlib._bootstrap, "_lock_unlock_module", waits)
    thread = threading.Thread(target=importlib.import_module, args=(name,))
    thread.start()
    try:
        assert inside.wait(SECONDS)
        prepared = wait_for(made, name)
    finally:
        thread.join()
        del sys.awaited_module_events
    assert prepared == [sys.modules[name]]
    assert sys.modules[name].Target().name() == "ours"


def test_who_is_imported_while_one_begins_to_wait(made, write, monkeypatch):
    """Seen by the finder, which is first: prepared once."""
    name = write(TEXT)

    class Meanwhile(list):
        def insert(self, index, value):
            super().insert(index, value)
            importlib.import_module(name)

    before = sys.meta_path
    monkeypatch.setattr(sys, "meta_path", Meanwhile(before))
    prepared = wait_for(made, name)
    assert prepared == [sys.modules[name]]
    made.put_back()
    assert sys.meta_path == before


def test_who_stops_waiting_hides_no_finder_from_an_import(write):
    """An import walks sys.meta_path while it changes."""
    waiting = _patching.Replaced()
    waiting.when_imported("awaited_module_of_nobody", lambda module: None)

    class Stops:
        @staticmethod
        def find_spec(name, path=None, target=None):
            waiting.put_back()

    name = write(TEXT)
    here = sys.meta_path.index(importlib.machinery.PathFinder)
    sys.meta_path.insert(here, Stops)
    try:
        importlib.import_module(name)
    finally:
        sys.meta_path.remove(Stops)


def test_who_has_not_begun_finds_nothing():
    awaited = _import_hook.AwaitedModule("awaited_module_of_nobody", None)
    assert awaited.find_spec("another") is None
    assert awaited.find_spec("awaited_module_of_nobody") is None
