# SPDX-License-Identifier: Apache-2.0
"""The tensors that have a rule (rules.py says what that means), and what
is done with their memory: for who moves modules, and for apply() and clear().
"""

import logging
import os
import threading
import weakref
from typing import NamedTuple

from stratalloc._native import core as _core
from stratalloc._native.stack import (LIFETIME_PERSISTENT, LIFETIME_STAYING,
                                      LIFETIMES)
from stratalloc._tiering import pin_table as _pin_table

PACKINGS = {False: 0, "lz4": 1, "zstd": 2, None: 3}

_lock = threading.RLock()
_rules = {}  # id of a tensor -> _Entry
_orphans = []  # what _pin_table.keep() answered for tensors that are dead

_log = logging.getLogger("stratalloc")


def _after_fork():
    global _lock
    _lock = threading.RLock()  # a thread that is gone may have held it
    _orphans.clear()  # the parent's


os.register_at_fork(after_in_child=_after_fork)


class Rule(NamedTuple):
    """Where the memory of a tensor may go.

    Fields:
      stay: it never leaves the device; so it is, too, where neither of the
        next two is allowed.
      host, disk: it may lie on this tier.
      compress: how its chunks on disk are packed: None as the setting says,
        False not at all, "lz4" or "zstd".
    """

    stay: bool = False
    host: bool = True
    disk: bool = True
    compress: object = None

    @property
    def stays(self):
        return self.stay or not (self.host or self.disk)


class _Entry:
    __slots__ = ("reference", "rule", "kept")

    def __init__(self, tensor, rule):
        key = id(tensor)

        # Whenever the collector runs, so without a lock, and no pin is ended:
        # its memory may live on in a view.
        def gone(reference):
            entry = _rules.get(key)
            if entry is not None and entry.reference is reference:
                _rules.pop(key, None)
                if entry.kept:
                    _orphans.append(entry.kept)

        self.reference = weakref.ref(tensor, gone)
        self.rule = rule
        self.kept = []  # what _pin_table.keep() answered


def rule_of(tensor):
    """The Rule of a tensor, or None."""
    entry = _entry(tensor)
    return None if entry is None else entry.rule


def some():
    """Is there any rule?"""
    return bool(_rules)


def lifetime(tensor, otherwise):
    """The lifetime class of memory that this tensor is about to get."""
    rule = rule_of(tensor)
    return LIFETIME_STAYING if rule is not None and rule.stays else otherwise


def arrived(tensor):
    """A tensor has got memory: what its rule says is done. Never raises."""
    entry = _entry(tensor)
    if entry is None:
        return
    try:
        with _lock:
            end_dead()
            kept = _settle(tensor, entry.rule, None)
            _pin_table.end(entry.kept)
            entry.kept = kept
    except Exception as error:  # the move itself was well
        _log.warning("a rule was not followed, call apply() again: %s", error)


class Moved:
    """Around the `_apply` of a module: its tensors' rules go with them.

    Meanwhile no tensor of it is held weakly, since `_apply` may swap tensors.
    """

    def __init__(self, module):
        self._module = module
        self._rules = {}  # by id, of tensors that their modules hold meanwhile
        self._places = []  # (module, kind, name, rule)

    def __enter__(self):
        with _lock:
            for module in modules_of(self._module):
                for kind in KINDS:
                    for name, tensor in list(named(module, kind)):
                        self._take(module, kind, name, tensor)
        return self

    def __exit__(self, *raised):
        for module, kind, name, rule in self._places:
            tensor = dict(named(module, kind)).get(name)
            if tensor is None or rule_of(tensor) is not None:
                continue  # gone, or given one since, which is the later word
            with _lock:
                _rules[id(tensor)] = _Entry(tensor, rule)
            arrived(tensor)

    def _take(self, module, kind, name, tensor):
        entry = _entry(tensor)
        if entry is not None:
            del _rules[id(tensor)]
            _pin_table.end(entry.kept)
            self._rules[id(tensor)] = entry.rule
        rule = self._rules.get(id(tensor))
        if rule is not None:  # tied ones have several places
            self._places.append((module, kind, name, rule))

    def placing(self, args, kwargs):
        """The arguments of `_apply`; its function allocates by rule."""
        if args:
            return (self._placing(args[0]), *args[1:]), kwargs
        if "fn" in kwargs:
            return args, {**kwargs, "fn": self._placing(kwargs["fn"])}
        return args, kwargs

    def _placing(self, function):
        from stratalloc._native import stack as _stack

        native, rules = _stack.functions(), self._rules

        def placed(tensor, *args, **kwargs):
            rule = rules.get(id(tensor))
            if rule is None or not rule.stays:
                return function(tensor, *args, **kwargs)
            scope, category, _ = native.current()
            below = native.depth()
            native.push(scope, category, LIFETIME_STAYING)
            try:
                return function(tensor, *args, **kwargs)
            finally:
                native.leave(below)

        return placed


KINDS = ("_parameters", "_buffers")


def named(module, kind):
    """(name, tensor) of what a module itself has."""
    import torch

    for name, tensor in (module.__dict__.get(kind) or {}).items():
        if isinstance(tensor, torch.Tensor):
            yield name, tensor


def modules_of(module):
    from stratalloc._native.module_tree import walk

    return [one for _, one in walk(module)]


def _entry(tensor):
    entry = _rules.get(id(tensor))
    return entry if entry is not None and entry.reference() is tensor else None


def end_dead():
    """The pins of tensors that have died are taken back, for their views."""
    with _lock:
        while _orphans:
            _pin_table.end(_orphans.pop())


def give(tensor, rule):
    """Another rule, or none; what fails leaves the one before."""
    with _lock:
        end_dead()
        before = _entry(tensor)
        # First: what could not be done has changed nothing.
        kept = _settle(tensor, rule, None if before is None else before.rule)
        if before is not None:
            _pin_table.end(before.kept)
        if rule is None:
            _rules.pop(id(tensor), None)
        else:
            entry = _rules[id(tensor)] = _Entry(tensor, rule)
            entry.kept = kept


def _settle(tensor, rule, before):
    """What the memory that a tensor has now lacks; the pins that are new.

    What fails is undone, as far as there is room to.
    """
    kept, placed = [], []
    if not _core.initialized():
        return kept
    below, was = _below(rule), _below(before)
    some = below != _below(None) or below != was
    try:
        _place(tensor, rule, kept, placed)
        if some:
            _tell_core(tensor, below)
    except BaseException:
        _pin_table.end(kept)
        try:
            for plain, lifetime in reversed(placed):
                _replace(plain, lifetime)
            if some:
                _tell_core(tensor, was)
        except Exception as error:
            _log.warning("part of a tensor follows a rule that could not be "
                         "kept, call apply() again: %s", error)
        raise
    return kept


def _tell_core(tensor, below):
    for _, storages in _plain(tensor):  # where they are by now
        for device, address, size in storages:
            _core.tier_rule(device, [(address, size)], *below)


def _place(tensor, rule, kept, placed):
    """Its memory lies where what stays lies, or is pinned; or does no more.

    `kept` gets the pins, `placed` (tensor, lifetime that its memory had).
    """
    stays = rule is not None and rule.stays
    for plain, storages in _plain(tensor):
        for device, address, size in storages:
            if not size:
                continue
            lies = _core.placement(address)
            evictable = 0 <= lies.lifetime < LIFETIMES.index("transient")
            if stays and evictable:
                if lies.held or plain is None:
                    kept += _pin_table.keep([(device, address, size)],
                                            "a tier rule")
                else:
                    _replace(plain, LIFETIME_STAYING)
                    placed.append((plain, lies.lifetime))
            elif not stays and lies.lifetime == LIFETIME_STAYING:
                if not lies.held and plain is not None:
                    _replace(plain, LIFETIME_PERSISTENT)
                    placed.append((plain, LIFETIME_STAYING))


def _below(rule):
    """(host, disk, packing): what the core knows of a rule (c_api.h)."""
    if rule is None or rule.stays:  # then it never gets there
        return True, True, PACKINGS[None]
    return rule.host, rule.disk, PACKINGS[rule.compress]


def _plain(tensor):
    """[(tensor with one storage, or None; its storages)] of the insides."""
    from stratalloc._native import storages as _storages

    try:
        inside = _storages.parts(tensor)
        if inside is not None:
            return [one for part in inside for one in _plain(part)]
        storages = _storages.of(tensor)
    except _storages.HasNoMemory:
        return []
    import torch

    one = (len(storages) == 1 and tensor.layout is torch.strided and
           not tensor.is_quantized and not tensor.is_nested)
    return [(tensor if one else None, storages)]


def _replace(tensor, lifetime):
    """The bytes of a storage go to new memory of this lifetime class.

    It is of the stream that the old memory is of, and what was recorded on that
    is recorded on it: so whoever has used the tensor may go on to.
    """
    import torch

    from stratalloc._native import bridge as _bridge, stack as _stack

    address = _bridge.storages(tensor._cdata)[0].address
    lies = _core.placement(address)
    if lies.capturing:
        raise RuntimeError(
            "stratalloc: while a CUDA graph is captured no memory can be given "
            "another place; give and clear rules before or after")
    native = _stack.functions()
    with torch._C.DisableTorchFunction(), torch.no_grad():
        storage = tensor.untyped_storage()
        device = storage.device
        stream = (torch.cuda.ExternalStream(lies.stream, device) if lies.stream
                  else torch.cuda.default_stream(device))
        below = native.depth()
        native.push(lies.scope, lies.category, lifetime)
        try:
            with torch.cuda.stream(stream):
                new = torch.empty(storage.nbytes(), dtype=torch.uint8,
                                  device=device)
        finally:
            native.leave(below)
        try:
            _core.record_streams_of(address,
                                    _bridge.storages(new._cdata)[0].address)
            old = torch.empty(0, dtype=torch.uint8, device=device)
            old.set_(storage)
            # What other streams write to the old memory comes before the copy,
            # and the copy before what they read of the new; none uses the old
            # one later.
            torch.cuda.synchronize(device)
            new.copy_(old)
            torch.cuda.synchronize(device)
            _bridge.exchange(new._cdata, tensor._cdata)
        finally:
            old = new = None  # an error's traceback would keep it
