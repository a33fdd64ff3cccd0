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

from stratalloc._native import state as _state
from stratalloc._tiering import ruled as _ruled
from stratalloc._tiering.ruled import Rule, rule_of  # noqa: F401


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
      NotEnabledError: before enable().
      RuntimeError: in the child of a fork; while a CUDA graph is captured, if
        memory would have to move.
      TypeError: something that holds no tensors.
      ValueError: another `compress`.
      torch.OutOfMemoryError: no room for the copy that moves to where it stays;
        tensors before it have the new rule, it and those after it the old one.
    """
    if compress is not None and compress is not False and (
            not isinstance(compress, str) or compress not in _ruled.PACKINGS):
        raise ValueError("stratalloc: compress is None, False, 'lz4' or "
                         f"'zstd', not {compress!r}")
    rule = Rule(bool(stay), bool(host), bool(disk), compress)
    _state.require()
    _ruled.end_dead()
    for tensor in list(_each(tensors)):
        _ruled.give(tensor, rule)


def clear(tensors):
    """Takes the rules of tensors back; those that have none are passed over.

    What stayed goes to handles that may leave, unless somebody holds its
    address, as the head of this module says. Raises as apply() does.
    """
    _state.require()
    _ruled.end_dead()
    for tensor in list(_each(tensors)):
        if rule_of(tensor) is not None:
            _ruled.give(tensor, None)


def _each(obj):
    """The tensors of an object, each once in a row."""
    import torch

    if isinstance(obj, torch.nn.Module):
        for module in _ruled.modules_of(obj):
            for kind in _ruled.KINDS:
                for _, tensor in _ruled.named(module, kind):
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
