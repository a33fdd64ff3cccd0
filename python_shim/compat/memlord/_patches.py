# SPDX-License-Identifier: Apache-2.0
"""Attributes of PyTorch that several trackers listen to, replaced once.

    ticket = listen([(torch, "empty"), ...], hear)
    # hear(result, args, kwargs) after each call, until
    ticket.end()  # twice is harmless

An attribute is replaced for its first listener and is the original again, the
very object, after its last; in whatever order they end. What somebody else put
in our place meanwhile stays, and what of ours is below it passes on.

A replacement calls the original, and afterwards whoever listens: what the
original raises passes through, and nobody hears of it. What a listener raises
is logged, once for each class of it. A replacement has the name, documentation
and signature of the original, is pickled as the attribute it is, and can be
scripted, by who kept one, too. While code is compiled nobody listens; modules
that make tables of PyTorch's functions when they are imported, and
torch.jit.script, which knows functions by identity, find the originals.

`listen_around` is for one that wants to know before, too: hear(args, kwargs)
returns what is called with the result.

Thread-safety: any thread.
"""

import contextlib
import functools
import logging
import os
import threading
import weakref

import torch
from torch.compiler import is_compiling

from stratalloc.compat._package import AwaitedModule, Replaced

_log = logging.getLogger("stratalloc")
# The compiler's tables are by function: they must have the originals.
_MAKING_TABLES = ("torch._dynamo", "torch._inductor")
# Whatever is scripted passes one of these; the second is for modules that are
# traced or are ScriptModules by class. Tracing itself calls what is in place.
_SCRIPTING = ((torch.jit._script, "_script_impl"),
              (torch.jit._recursive, "create_script_module"))


class _Heard:
    """Who listens to one attribute; read without a lock."""

    __slots__ = ("before", "after", "hooks", "owner", "name", "wrapper")

    def __init__(self, owner, name):
        self.before = self.after = ()
        self.hooks = Replaced()
        self.owner, self.name = owner, name
        self.wrapper = None


class _Ticket:
    """One listener, at some attributes."""

    def __init__(self, places, hear, around):
        self._places, self._hear, self._around = places, hear, around

    def end(self):
        with _lock:
            places, self._places = self._places, ()
            for place in places:
                _silence(place, self._hear, self._around)
            if places and not _heard:
                _scripting.put_back()
                while _awaited:
                    _awaited.pop().end()


_lock = threading.RLock()  # held by no import; a tracker may die under it
_suspended = 0  # imports and compilations that need the originals
_heard = {}  # (id of the owner, name) -> _Heard
_awaited = []
_scripting = Replaced()
_warned = set()  # classes of errors


def listen(places, hear):
    """hear(result, args, kwargs) after each call of (owner, name)s that are."""
    return _listen(places, hear, False)


def listen_around(places, hear):
    """hear(args, kwargs) before, what it returns with the result after it."""
    return _listen(places, hear, True)


def _listen(places, hear, around):
    with _lock:
        if not _heard:
            _make_tables()
        made = [place for place in places if _add(place, hear, around)]
        begun = []
        if made and not _awaited:
            for owner, name in _SCRIPTING:
                _scripting.replace(owner, name, _with_originals)
            begun = [AwaitedModule(name, lambda module: None, around=_originals)
                     for name in _MAKING_TABLES]
            _awaited.extend(begun)
    for awaited in begun:  # waits for a thread that imports it
        awaited.begin()
        with _lock:
            if awaited not in _awaited:  # all ended meanwhile
                awaited.end()
    return _Ticket(made, hear, around)


def _add(place, hear, around):
    owner, name = place
    heard = _heard.get((id(owner), name))
    if heard is None:
        heard = _Heard(owner, name)
        if not (hasattr(owner, name) if _suspended else _install(heard)):
            return False
        _heard[id(owner), name] = heard
    if around:
        heard.before = (*heard.before, hear)
    else:
        heard.after = (*heard.after, hear)
    return True


def _silence(place, hear, around):
    key = id(place[0]), place[1]
    heard = _heard[key]
    listeners = list(heard.before if around else heard.after)
    listeners.remove(hear)
    if around:
        heard.before = tuple(listeners)
    else:
        heard.after = tuple(listeners)
    if not heard.before and not heard.after:
        _remove(heard)
        del _heard[key]
        heard.wrapper = None  # no cycle: it dies with who kept it


def _install(heard):
    def make(original):
        known = getattr(heard.wrapper, "__wrapped__", None)
        if known is None or known is not original:
            heard.wrapper = _wrapper(original, heard)
        return heard.wrapper

    if not heard.hooks.replace(heard.owner, heard.name, make):
        return False
    _as_builtin(heard)
    return True


def _remove(heard):
    heard.hooks.put_back()


@contextlib.contextmanager
def _originals():
    """Nothing is replaced, for the length of an import or a compilation. What
    other threads make meanwhile is not heard of."""
    global _suspended
    with _lock:
        if not _suspended:
            for heard in _heard.values():
                _remove(heard)
        _suspended += 1
    try:
        yield
    finally:
        with _lock:
            _suspended -= 1
            if not _suspended:
                for heard in _heard.values():
                    _install(heard)


def _with_originals(compile_):
    @functools.wraps(compile_)
    def compiling(*args, **kwargs):
        if "_frames_up" in kwargs:  # where names of a class are looked up
            kwargs["_frames_up"] += 1
        with _originals():
            return compile_(*args, **kwargs)

    return compiling


def _wrapper(original, heard):
    @functools.wraps(original)
    def replaced(*args, **kwargs):
        if is_compiling() or not (heard.after or heard.before):
            return original(*args, **kwargs)
        if heard.before:
            then = [_tell(hear, args, kwargs) for hear in heard.before]
            result = original(*args, **kwargs)
            for hear in filter(None, then):
                _tell(hear, result)
        else:
            result = original(*args, **kwargs)
        for hear in heard.after:
            _tell(hear, result, args, kwargs)
        return result

    # As it is found: so it is pickled, whatever the original calls itself.
    owner = heard.owner
    if isinstance(owner, type):
        replaced.__module__ = owner.__module__
        replaced.__qualname__ = f"{owner.__qualname__}.{heard.name}"
    else:
        replaced.__module__, replaced.__qualname__ = owner.__name__, heard.name
    # Asked by torch.jit.script of who kept this (`from torch import add`, an
    # activation in a module): its source is the original's, its globals ours.
    replaced.__prepare_scriptable__ = lambda: original
    return replaced


def _tell(hear, *told):
    try:
        return hear(*told)
    except Exception as error:  # of ours: the program's call has succeeded
        if type(error) not in _warned:
            _warned.add(type(error))
            _log.warning("memlord: a call of PyTorch was not accounted for",
                         exc_info=True)
    return None


def _make_tables():
    """PyTorch's own tables of its functions, which it makes at first use; that
    of factories is made by _creations, which asks for it."""
    torch.overrides.get_overridable_functions()
    _scripted()


def _scripted():
    """{id of a function: the operator that torch.jit.script calls for it}."""
    return torch.jit._builtins._get_builtin_table()


def _as_builtin(heard):
    wrapper, table = heard.wrapper, _scripted()
    original = getattr(wrapper, "__wrapped__", None)
    operator = table.get(id(original))
    if operator is not None and id(wrapper) not in table:
        table[id(wrapper)] = operator
        # Not before: a program may have kept it.
        weakref.finalize(wrapper, table.pop, id(wrapper), None).atexit = False
    # Those of which one of two is compiled, by an argument (max_pool2d).
    choices = torch._jit_internal.boolean_dispatched
    if original in choices and wrapper not in choices:
        choices[wrapper] = choices[original]


def _in_child():
    global _lock
    _lock = threading.RLock()  # whoever held it is not there


os.register_at_fork(after_in_child=_in_child)
