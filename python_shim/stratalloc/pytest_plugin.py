# SPDX-License-Identifier: Apache-2.0
"""pytest plug-in: a suite under the allocator, with limits, leaks, budgets.

    pytest --stratalloc                              on the GPU
    pytest --stratalloc-simulate 24GiB [--stratalloc-card a100]
           [--stratalloc-numbers off]                on a simulated one

Ours is in place before a conftest imports torch. Then

    @pytest.mark.limit_gpu_memory("2 GiB")

fails a test during which the device held more at once: its fixtures included,
those of wider scopes too, without the workspaces that libraries keep when it is
over, and without what else was there before it (the tensors of a failed test
whose traceback is kept);
--stratalloc-leaks is an error at the teardown of a test that leaves memory
behind when its own fixtures are gone (on a model of a wider fixture, too: its
gradients, say); and a file `test_x.budget.json` beside test_x.py fails tests
that need more than is written there (--stratalloc-update-budgets writes it). Failures name the
layers. Without one of the first two options nothing here does anything, and
neither torch nor the rest of the package is imported.
"""

import os
import sys

import pytest

_STATE = pytest.StashKey()
_MARK = "limit_gpu_memory"


def pytest_addoption(parser):
    group = parser.getgroup("stratalloc", "GPU memory (stratalloc)")
    group.addoption("--stratalloc", action="store_true",
                    help="run under stratalloc's allocator, on the GPU")
    group.addoption("--stratalloc-simulate", metavar="SIZE",
                    help="the same on a simulated GPU of SIZE (24GiB; card: "
                    "the card's own); needs stratalloc[simulate]")
    group.addoption("--stratalloc-card", metavar="NAME",
                    help="model a card on it: h200, a100, rtx4090, t4, wsl2")
    group.addoption("--stratalloc-numbers", choices=("on", "off"),
                    help="off: shapes and memory, but nothing is computed; "
                    "for models of real size")
    group.addoption("--stratalloc-leaks", action="store_true",
                    help="fail tests that leave memory behind on the device")
    group.addoption("--stratalloc-leaks-above", metavar="SIZE",
                    help="the same, for more than SIZE")
    group.addoption("--stratalloc-update-budgets", action="store_true",
                    help="write what each test needs into its module's "
                    "*.budget.json instead of checking it")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Before any conftest: the allocator comes before torch's CUDA."""
    options = early_config.known_args_namespace
    simulated = options.stratalloc_simulate
    _check(options)
    if not (options.stratalloc or simulated):
        return
    from stratalloc import _enable
    from stratalloc._native import state as _state
    from stratalloc._native.core import LibraryError

    if _state.forbidden():
        raise pytest.UsageError(
            "--stratalloc: STRATALLOC=0 in the environment keeps PyTorch's "
            "allocator; unset it, or leave the option out")
    try:
        if simulated:
            _simulate(options)
        else:
            _require_gpu()
        _enable.enable()
        # torch comes with it
        from stratalloc._testing import pytest_state as _pytest_state

        early_config.stash[_STATE] = _pytest_state.State(
            _leaks(options), options.stratalloc_update_budgets)
    except (LibraryError, ValueError, RuntimeError) as error:
        text = str(error).removeprefix("stratalloc: ")
        raise pytest.UsageError(f"stratalloc: {text}") from None


def _require_gpu():
    """Without one every limit would hold, of nothing."""
    import torch

    from stratalloc._native import gpus as _gpus

    reason = _gpus.why_none(torch)
    if reason is not None:
        raise pytest.UsageError(
            f"--stratalloc: there is no GPU: {reason}; "
            "--stratalloc-simulate SIZE has a simulated one")


def _check(options):
    """Options without the one they are about are mistakes."""
    if not options.stratalloc_simulate:
        given = [name for name in ("card", "numbers")
                 if getattr(options, "stratalloc_" + name)]
        if given:
            raise pytest.UsageError(
                f"--stratalloc-{given[0]} is about a simulated GPU: give "
                "--stratalloc-simulate SIZE as well")
    elif "torch" in sys.modules:
        raise pytest.UsageError(
            "--stratalloc-simulate: torch is imported already, by a plug-in "
            "or by PYTHONPATH's sitecustomize; load this one before it: "
            "pytest -p stratalloc ...")
    active = options.stratalloc or options.stratalloc_simulate
    for name in ("leaks", "leaks_above", "update_budgets"):
        if getattr(options, "stratalloc_" + name) and not active:
            raise pytest.UsageError(
                f"--stratalloc-{name.replace('_', '-')} looks at our "
                "allocator: give --stratalloc or --stratalloc-simulate SIZE "
                "as well")
    if (options.stratalloc_update_budgets
            and (getattr(options, "numprocesses", None)
                 or "PYTEST_XDIST_WORKER" in os.environ)):
        raise pytest.UsageError(
            "--stratalloc-update-budgets: several processes would write one "
            "file; run without -n")


def _simulate(options):
    from stratalloc import _autoload, simulate

    memory = options.stratalloc_simulate
    if memory != "card":
        _size("--stratalloc-simulate", memory)
    _autoload.leave_to_caller()  # the device comes first
    simulate.load(memory, card=options.stratalloc_card,
                  numbers=options.stratalloc_numbers)
    simulate.for_children()


def _leaks(options):
    """Bytes that a test may leave behind; None: as many as it likes."""
    if options.stratalloc_leaks_above is not None:
        return _size("--stratalloc-leaks-above",
                     options.stratalloc_leaks_above)
    return 0 if options.stratalloc_leaks else None


def _size(option, text):
    from stratalloc.sizes import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise pytest.UsageError(f"{option} {text}: {error}") from None


def pytest_configure(config):
    config.addinivalue_line(
        "markers", f"{_MARK}(size): fail if the device holds more than size at "
        "once while the test runs, under --stratalloc or "
        "--stratalloc-simulate")


def pytest_report_header(config):
    if _STATE not in config.stash:
        return None
    from stratalloc import simulate

    return f"stratalloc: {simulate.label() or 'enabled'}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    state = item.config.stash.get(_STATE, None)
    if state is not None:
        state.begin(_fixtures(item),
                    item.get_closest_marker(_MARK) is not None
                    or state.is_measured(item.path, _name(item)))
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef, request):
    """What a wider fixture makes is need of each test that uses it."""
    state = request.config.stash.get(_STATE, None)
    if state is None or fixturedef.scope == "function":
        return (yield)
    before = state.live()
    try:
        return (yield)
    finally:
        state.fixtures.made(fixturedef, before, state.live())


def pytest_fixture_post_finalizer(fixturedef, request):
    state = request.config.stash.get(_STATE, None)
    if state is not None:
        state.fixtures.forget(fixturedef)


def _fixtures(item):
    """Definitions of the fixtures that a test names, or has asked for by now."""
    named = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    asked = getattr(getattr(item, "_request", None), "_fixture_defs", {})
    return [*(one for each in named.values() for one in each), *asked.values()]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item):
    """Outermost: what it looks at is what is left when fixtures are gone."""
    result = yield
    state = item.config.stash.get(_STATE, None)
    if state is None:
        return result
    item.funcargs.clear()  # fixtures that are no more
    left = state.end()
    if left:
        pytest.fail(left, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item):
    """Innermost, so that what it raises is the test's own failure."""
    state = item.config.stash.get(_STATE, None)
    if state is None:
        return (yield)
    state.begin_call()
    result = yield  # a test that fails by itself is not asked for more
    mark = item.get_closest_marker(_MARK)
    limit = None if mark is None else _limit(mark)
    wrong = state.end_call(item.path, _name(item), limit, _fixtures(item))
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
    return result


def _limit(mark):
    """Bytes of @pytest.mark.limit_gpu_memory("2 GiB")."""
    from stratalloc.sizes import parse_size

    wrong = "it takes one size, as \"2 GiB\""
    if len(mark.args) == 1 and not mark.kwargs:
        size, = mark.args
        try:
            found = parse_size(size) if isinstance(size, str) else int(size)
            if found >= 0:
                return found
            wrong = "a size is not negative"
        except (TypeError, ValueError) as error:
            wrong = str(error)
    given = ", ".join(repr(each) for each in mark.args)
    return pytest.fail(f"@pytest.mark.{_MARK}({given}): {wrong}",
                       pytrace=False)


def _name(item):
    """What a test is called in its module: "TestX::test_y[1]"."""
    return item.nodeid.partition("::")[2]


def pytest_sessionfinish(session):
    state = session.config.stash.get(_STATE, None)
    if state is not None:
        state.finish()


def pytest_terminal_summary(terminalreporter):
    state = terminalreporter.config.stash.get(_STATE, None)
    if state is None:
        return
    from stratalloc import simulate

    for path in state.written:
        terminalreporter.write_line(f"stratalloc: wrote {path}")
    line = simulate.last_line()
    if line is not None:
        terminalreporter.write_line(f"stratalloc: {line}")
