# SPDX-License-Identifier: Apache-2.0
"""Rules by tensor: what never leaves the device, and where the rest may go.

apply() gives tensors a rule, clear() takes it back. A rule holds for the memory
that a tensor has and, when its module is moved (`.to()`, `.cuda()`, `.half()`,
`to_empty()`, the first call of a lazy one), for what it gets there; so it may
be given before CUDA is initialised. Memory that a tensor gets otherwise
(`p.data = ...`, load_state_dict(assign=True)) has none until apply() is called
again, which is cheap where nothing is to be done. Copies (deepcopy, pickle)
have no rule, and a tensor that dies leaves nothing.

What stays lies in handles of its own (the lifetime class "staying"), so that
nothing else stays with it. Memory that is there already gets another place in
the same storage: apply() copies it there, and clear() back, so **addresses may
change** in these two calls. Nobody may use the tensors meanwhile in another
thread, and who took data_ptr() before takes it again. Where somebody holds the
address beyond that (pin(), DLPack, another process, a CUDA graph that reads
something in its handles) the memory is pinned where it is instead, and with it
what shares its handles. On the way back it stays where it is until it is freed
if somebody holds the address, or anything was captured since its device was
opened: nobody notes which graphs read what stays. Nothing can be copied while
a CUDA graph is captured: that is an error.

Rules of the tiers below are of the memory, where it lies: no address changes.
The unit that moves is a handle (2 MiB or more), which goes only where all that
lives in it may go, so a rule may hold for neighbours, too. What lies where it
may not goes down, or comes back, in apply().

A rule speaks of a whole storage, as evict() does: of several tensors in one the
last word counts for all of it.

The tensors are held weakly, as torch's own guards of compiled code hold them,
so torch.utils.swap_tensors refuses those that have a rule; moving a module,
which may swap, is looked after.
"""

import logging
import os
import threading
import weakref
from typing import NamedTuple

from stratalloc import _core
from stratalloc import _pins
from stratalloc import _tiers
from stratalloc._stack import LIFETIME_PERSISTENT, LIFETIME_STAYING, LIFETIMES

_PACKINGS = {False: 0, "lz4": 1, "zstd": 2, None: 3}

_lock = threading.RLock()
_rules = {}  # id of a tensor -> _Entry

_log = logging.getLogger("stratalloc")


def _after_fork():
    global _lock
    _lock = threading.RLock()  # a thread that is gone may have held it


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

        # Whenever the collector runs, so without the lock.
        def gone(reference):
            entry = _rules.get(key)
            if entry is not None and entry.reference is reference:
                _rules.pop(key, None)

        self.reference = weakref.ref(tensor, gone)
        self.rule = rule
        self.kept = []  # what _pins.keep() answered


def apply(tensors, *, stay=False, host=True, disk=True, compress=None):
    """Gives tensors a rule, in the place of the one they had.

    Args:
      tensors: a tensor, a module (its parameters and buffers, no gradients), or
        any iterable or mapping of those, nested at will; on any device.
      stay: never leaves the device. Until clear() or another rule.
      host: may lie in host memory; False: it goes straight to disk.
      disk: may lie on disk.
      compress: None, False, "lz4" or "zstd": how chunks on disk are packed;
        None as `disk_codec` says. Of several tensors in one handle the fastest
        counts; where compressed chunks fill the disk they all are compressed.
      Neither host nor disk means stay.

    Raises:
      RuntimeError: stratalloc is not enabled; in the child of a fork; while a
        CUDA graph is captured, if memory would have to move.
      TypeError: something that holds no tensors.
      ValueError: another `compress`.
      torch.OutOfMemoryError: no room for the copy that moves to where it stays;
        tensors before it have the new rule, it and those after it the old one.
    """
    if compress is not None and compress is not False and (
            not isinstance(compress, str) or compress not in _PACKINGS):
        raise ValueError("stratalloc: compress is None, False, 'lz4' or "
                         f"'zstd', not {compress!r}")
    rule = Rule(bool(stay), bool(host), bool(disk), compress)
    _tiers.require_enabled("nothing leaves the device and no rule is needed")
    for tensor in list(_each(tensors)):
        _give(tensor, rule)


def clear(tensors):
    """Takes the rules of tensors back; those that have none are passed over.

    What stayed goes to handles that may leave, unless somebody holds its
    address, as the head of this module says. Raises as apply() does.
    """
    _tiers.require_enabled("nothing leaves the device and there is no rule")
    for tensor in list(_each(tensors)):
        if rule_of(tensor) is not None:
            _give(tensor, None)


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
            entry.kept = _settle(tensor, entry.rule, None)
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
            for module in _modules_of(self._module):
                for kind in _KINDS:
                    for name, tensor in list(_named(module, kind)):
                        self._take(module, kind, name, tensor)
        return self

    def __exit__(self, *raised):
        for module, kind, name, rule in self._places:
            tensor = dict(_named(module, kind)).get(name)
            if tensor is None:
                continue
            with _lock:
                _rules[id(tensor)] = _Entry(tensor, rule)
            arrived(tensor)

    def _take(self, module, kind, name, tensor):
        entry = _entry(tensor)
        if entry is not None:
            del _rules[id(tensor)]
            _pins.end(entry.kept)
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
        from stratalloc import _stack

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


_KINDS = ("_parameters", "_buffers")


def _named(module, kind):
    """(name, tensor) of what a module itself has."""
    import torch

    for name, tensor in (module.__dict__.get(kind) or {}).items():
        if isinstance(tensor, torch.Tensor):
            yield name, tensor


def _modules_of(module):
    from stratalloc import _owners

    return [one for _, one in _owners._walk(module)]


def _each(obj):
    """The tensors of an object, each once in a row."""
    import torch

    if isinstance(obj, torch.nn.Module):
        for module in _modules_of(obj):
            for kind in _KINDS:
                for _, tensor in _named(module, kind):
                    yield tensor
    elif isinstance(obj, torch.Tensor):
        yield obj
    elif isinstance(obj, dict):
        for value in obj.values():
            yield from _each(value)
    elif hasattr(obj, "__iter__") and not isinstance(
            obj, (str, bytes, torch.UntypedStorage, torch.TypedStorage)):
        for value in obj:
            yield from _each(value)
    else:
        raise TypeError("stratalloc: a rule is for tensors, a module or an "
                        f"iterable of them, not {type(obj).__name__}")


def _entry(tensor):
    entry = _rules.get(id(tensor))
    return entry if entry is not None and entry.reference() is tensor else None


def _give(tensor, rule):
    """Another rule, or none; what fails leaves the one before."""
    with _lock:
        before = _entry(tensor)
        # First: what could not be done has changed nothing.
        kept = _settle(tensor, rule, None if before is None else before.rule)
        if before is not None:
            _pins.end(before.kept)
        if rule is None:
            _rules.pop(id(tensor), None)
        else:
            entry = _rules[id(tensor)] = _Entry(tensor, rule)
            entry.kept = kept


def _settle(tensor, rule, before):
    """What the memory that a tensor has now lacks; the pins that are new."""
    kept = []
    if not _core.initialized():
        return kept
    stays = rule is not None and rule.stays
    for plain, storages in _plain(tensor):
        for device, address, size in storages:
            if not size:
                continue
            lies = _core.placement(address)
            evictable = 0 <= lies.lifetime < LIFETIMES.index("transient")
            if stays and evictable:
                if lies.held or plain is None:
                    kept += _pins.keep([(device, address, size)], "a tier rule")
                else:
                    _replace(plain, lies, LIFETIME_STAYING)
            elif not stays and lies.lifetime == LIFETIME_STAYING:
                if not lies.held and plain is not None:
                    _replace(plain, lies, LIFETIME_PERSISTENT)
    below = _below(rule)
    if below != _below(None) or below != _below(before):
        for _, storages in _plain(tensor):  # where they are by now
            for device, address, size in storages:
                _core.tier_rule(device, [(address, size)], *below)
    return kept


def _below(rule):
    """(host, disk, packing): what the core knows of a rule (c_api.h)."""
    if rule is None or rule.stays:  # then it never gets there
        return True, True, _PACKINGS[None]
    return rule.host, rule.disk, _PACKINGS[rule.compress]


def _plain(tensor):
    """[(tensor with one storage, or None; its storages)] of the insides."""
    from stratalloc import _storages

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


def _replace(tensor, lies, lifetime):
    """The bytes of a storage go to new memory of this lifetime class."""
    import torch

    from stratalloc import _bridge, _stack

    if lies.capturing:
        raise RuntimeError(
            "stratalloc: while a CUDA graph is captured no memory can be given "
            "another place; give and clear rules before or after")
    native = _stack.functions()
    with torch._C.DisableTorchFunction(), torch.no_grad():
        storage = tensor.untyped_storage()
        below = native.depth()
        native.push(lies.scope, lies.category, lifetime)
        try:
            new = torch.empty(storage.nbytes(), dtype=torch.uint8,
                              device=storage.device)
        finally:
            native.leave(below)
        try:
            old = torch.empty(0, dtype=torch.uint8, device=storage.device)
            old.set_(storage)
            # What other streams write to the old memory comes before the copy,
            # and the copy before what they read of the new; none uses the old
            # one later.
            torch.cuda.synchronize(storage.device)
            new.copy_(old)
            torch.cuda.synchronize(storage.device)
            _bridge.exchange(new._cdata, tensor._cdata)
        finally:
            old = new = None  # an error's traceback would keep it
