# SPDX-License-Identifier: Apache-2.0
"""Ways in: enable(), allocator(), library(), and what they share.

Order, each step needed by the next: torch's minor has a bridge; CUDA is not
initialised yet; the configuration is valid and given to the core; the op
guard is installed (tiering on; dispatch tables are not written atomically, so
before other threads run operators), with wrappers of the collectives that it
does not see; the allocator is swapped; module scopes are wrapped. A step that
fails leaves torch as it was: the swap is the first step torch can see, and a
guard or wrapper without our allocator passes everything on.
"""

import logging
import os
import sys
import threading

from stratalloc._hooks import witness as _witness
from stratalloc._native import bridge as _bridge
from stratalloc._native import core as _core
from stratalloc._native import gpus as _gpus
from stratalloc._native import state as _state
from stratalloc._native.errors import NotEnabledError
from stratalloc._native.state import is_enabled
from stratalloc._recording import levels as _levels
from stratalloc.settings import Config

_log = logging.getLogger("stratalloc")
lock = threading.RLock()
_guarded = False
_said_no_gpu = False
_said_forbidden = False


def strict():
    """True if STRATALLOC_STRICT=1: what else is a line on stderr raises."""
    return os.environ.get("STRATALLOC_STRICT", "0") == "1"


def enable(config=None, **overrides):
    """Makes stratalloc torch's CUDA allocator for this process.

    Call it before CUDA is initialised (any tensor on a GPU, any
    torch.cuda.init). `config` is a Config; without one STRATALLOC_CONF is
    read; `overrides` replace single fields: enable(host_budget="8GiB").

    A budget that cannot do what it is for is a warning of the logger. With
    STRATALLOC=0 in the environment nothing is done but one such warning. A
    machine without a GPU is one line on stderr; STRATALLOC_STRICT=1 raises
    instead.

    Returns: True if the allocator is ours afterwards; False with STRATALLOC=0.

    Raises:
      ValueError: a setting is bad.
      UnsupportedTorchError: this installation has no bridge for this torch.
      RuntimeError: the call comes too late.
    """
    with lock:
        if _state.forbidden() and not is_enabled():
            _say_forbidden()
            return False
        asked, wanted = _wanted(config, overrides)
        import torch

        if is_enabled():
            if config is None and not overrides:
                if _state.tiering_ended:
                    _log.warning("stratalloc: enable() switches nothing on: "
                                 "disable() has ended tiering in this process")
                return True
            _reconfigure(torch, asked, wanted)
            return True
        _bridge.load(torch.__version__)
        _refuse_late(torch)
        _say_if_there_is_no_gpu(torch)
        _prepare(torch, asked, wanted)
        _bridge.install()
        _install_module_scopes()
        _log.info("enabled: %s", _state.active)
        return True


def allocator(config=None, **overrides):
    """The object for torch.cuda.memory.change_current_allocator().

    The swap itself is the caller's; everything else happens as in enable().
    Raises NotEnabledError with STRATALLOC=0 in the environment.
    """
    with lock:
        return _bridge.pluggable(_ready_for_plugin(config, overrides))


def library(config=None, **overrides):
    """The path for torch's own constructor of a pluggable allocator:

        torch.cuda.memory.CUDAPluggableAllocator(
            stratalloc.library(), "stratalloc_malloc", "stratalloc_free")

    Given to change_current_allocator() it becomes the whole allocator when
    CUDA is initialised, before the first block exists. Given to a MemPool it
    serves unmanaged segments that are never evicted. Everything but the swap
    happens here, as in enable(). Raises NotEnabledError with STRATALLOC=0 in
    the environment.
    """
    with lock:
        _ready_for_plugin(config, overrides, _queue_upgrade)
        return _bridge.path()


def _queue_upgrade(torch):
    # Ahead of whatever _prepare() queues for that moment: it may ask the core.
    torch.cuda._lazy_call(lambda: _bridge.call("upgrade_plugin"))


def _ready_for_plugin(config, overrides, before=lambda torch: None):
    """All of enable() but the swap; once ours is in place, nothing."""
    import torch

    if _state.forbidden() and not is_enabled():
        raise NotEnabledError(_state.why_not_enabled())
    if is_enabled() and config is None and not overrides:
        return torch
    asked, wanted = _wanted(config, overrides)
    _refuse_tiering(wanted)
    _bridge.load(torch.__version__)
    _refuse_late(torch)
    _say_if_there_is_no_gpu(torch)
    before(torch)
    _prepare(torch, asked, wanted)
    _install_module_scopes()
    return torch


def _wanted(given, overrides):
    """What was asked for, and the same with every default filled in."""
    if given is None:
        given = Config.from_env()
    elif not isinstance(given, Config):
        raise TypeError(
            f"stratalloc: config must be a Config, not {type(given).__name__}")
    asked = given.replace(**overrides)
    return asked, asked.resolved()


def _prepare(torch, asked, wanted):
    """Everything before the swap: the core configured, the guard installed."""
    global _guarded
    from stratalloc import simulate
    from stratalloc._hooks import card_size as _card_size
    from stratalloc._hooks import nccl as _nccl
    from stratalloc._hooks import torch_settings as _torch_settings

    # The operator bridge of a simulated device must be in front before the
    # guard takes "the kernel so far" as its own previous one.
    simulate.before_enable(torch)
    _core.configure(wanted, asked.host_budget is not None)
    _torch_settings.install()
    _nccl.prepare()
    _card_size.use(wanted.gpu_limit)
    # A phantom host_budget needs no memory of this machine.
    memory = sys.maxsize if simulate.is_phantom() else None
    for remark in asked.remarks(wanted, memory):
        _log.warning("stratalloc: %s", remark)
    if _state.active is None:
        simulate.after_enable(torch)
    _state.asked, _state.active = asked, wanted
    _levels.begin(torch, wanted.telemetry)
    if wanted.live:
        from stratalloc._live import server

        server.serve_from_first_use(torch)
    if wanted.oom_dir or "stratalloc._oom.hook" in sys.modules:
        from stratalloc._oom import hook

        hook.use(wanted)
    if wanted.tiering and not _guarded:
        _bridge.install_guard()
        _install_foreign_uses(torch)
        _guarded = True


def _install_foreign_uses(torch):
    """What no operator shows: each module says what it replaces."""
    from stratalloc._hooks import collectives as _collectives
    from stratalloc._hooks import compiled as _compiled
    from stratalloc._hooks import device_maps as _device_maps
    from stratalloc._hooks import exports as _exports
    from stratalloc._hooks import foreign_call as _foreign_call
    from stratalloc._hooks import functions as _functions
    from stratalloc._hooks import storages as _storages

    _foreign_call.bind(torch)
    for hooks in (_collectives, _compiled, _device_maps, _exports, _functions,
                  _storages):
        hooks.install()


def _refuse_tiering(wanted):
    if _state.tiering_ended and wanted.tiering:
        raise RuntimeError(
            "stratalloc: disable() has switched tiering off for the rest of "
            "this process, and the settings given have it on; pass "
            "tiering=False, or start the program again")


def reconfigure(config):
    """Other settings, before the first block exists; no swap."""
    import torch

    _reconfigure(torch, *_wanted(config, {}))


def _reconfigure(torch, asked, wanted):
    """enable() again: fine until the first block exists."""
    # What is left open has a default of what the machine has free by now.
    if wanted == _state.active or asked == _state.asked:
        return
    _refuse_tiering(wanted)
    if torch.cuda.is_initialized():
        changed = [key for key in Config.keys()
                   if getattr(wanted, key) != getattr(_state.active, key)
                   and getattr(asked, key) != getattr(_state.asked, key)]
        if not changed:
            return
        raise RuntimeError(
            f"stratalloc: {', '.join(changed)} cannot change any more: CUDA "
            "is initialised and the allocator runs with "
            f"{_describe(_state.active, changed)}; pass them to the first "
            "stratalloc.enable()")
    _prepare(torch, asked, wanted)


def _describe(config, keys):
    return ", ".join(f"{key}={getattr(config, key)!r}" for key in keys)


def why_late(torch):
    """(why the allocator cannot be swapped any more, how to mend the program);
    None while it can."""
    if torch.cuda.is_initialized():
        return (f"CUDA is already initialised{_witness.by_whom()}, so torch's "
                "native allocator may own blocks and cannot be replaced any more",
                f"move {_call_site()} above the first use "
                "of CUDA (the first tensor or module moved to a GPU, "
                "torch.cuda.init(), torch.cuda.current_stream(), ...), or start "
                "the program with STRATALLOC=1 or `stratalloc run`")
    backend = torch.cuda.memory.get_allocator_backend()
    if backend != "native":
        return (f"torch's CUDA allocator is already {backend!r}",
                "remove the call that installs it (change_current_allocator) "
                "or its PYTORCH_ALLOC_CONF backend option")
    return None


def _refuse_late(torch):
    """Raises once torch's native allocator may own blocks."""
    late = why_late(torch)
    if late is not None:
        raise RuntimeError(f"stratalloc: {late[0]}; {late[1]}")


def _say_forbidden():
    """Once: the environment forbids what the program asks for."""
    global _said_forbidden
    if not _said_forbidden:
        _said_forbidden = True
        _log.warning("stratalloc: STRATALLOC=0 in the environment: enable() "
                     "does nothing, PyTorch's allocator stays")


def _say_if_there_is_no_gpu(torch):
    """We are enabled all the same: it costs nothing, and CPU code goes on."""
    global _said_no_gpu
    reason = _gpus.why_none(torch)
    if reason is None:
        return
    text = (f"stratalloc: torch will find no GPU here: {reason}; for a "
            "simulated one start with `stratalloc run --simulate 8GiB`")
    if _gpus.hidden():
        _log.info(text)  # as this process was told to
    elif strict():
        raise RuntimeError(text)
    elif not _said_no_gpu:
        _said_no_gpu = True
        print(text, file=sys.stderr)


def _call_site():
    """Names the statement to move: the caller outside this package."""
    frame = sys._getframe(1)
    here = os.path.dirname(os.path.abspath(__file__))
    while frame is not None:
        name = frame.f_code.co_filename
        if not os.path.abspath(name).startswith(here + os.sep):
            return (f"the call of stratalloc at {os.path.basename(name)}:"
                    f"{frame.f_lineno}")
        frame = frame.f_back
    return "stratalloc.enable()"


def _install_module_scopes():
    from stratalloc._ownership import modules as _modules

    _modules.install()
