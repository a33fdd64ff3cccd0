# SPDX-License-Identifier: Apache-2.0
"""MemoryManager: modules that leave memory while they are not used.

A manager offloads the modules it was given, by hand at once and, once it is
started, by itself: a thread looks how full GPUs and host are and makes room
(_rounds.py). Each module has one manager, the last that wrapped it; managers
know nothing of each other and may share a model and a config.

Thread-safety: any thread. wrap, cleanup and the like take one lock of the
process, moves none: the allocator moves one thing at a time itself. Eager
moves of wrapping are done under it, so that cleanup() comes before or after.
Fails: TypeError and ValueError for what cannot be wrapped, with nothing
wrapped; RuntimeError of wrapping and start() after cleanup().
"""

import contextlib
import logging
import threading
import weakref

from stratalloc.compat.memory_management import _endings
from stratalloc.compat.memory_management import _rounds
from stratalloc.compat.memory_management import spilled
from stratalloc.compat.memory_management import workers
from stratalloc.compat.memory_management import wrapper
from stratalloc.compat.memory_management.config import MemoryConfig
from stratalloc.compat.memory_management.monitor import MemoryMonitor
from stratalloc.compat.memory_management.strategies import OffloadStrategies

_log = logging.getLogger("stratalloc")


def auto_manage_model(model, config=None):
    """A started manager of every nn.Linear in `model`, itself included.

    Args:
      model: a torch.nn.Module, on any device or none yet.
      config: a MemoryConfig; None: its defaults.

    Returns: the MemoryManager. Its cleanup() makes the modules plain again.
    """
    manager = MemoryManager(config)
    try:
        manager.wrap_model(model)
        manager.start()
    except BaseException:
        manager.cleanup()
        raise
    return manager


class MemoryManager:
    """Offloads modules: by hand, and by itself while it is started.

    `config`, `monitor` and `strategies` are what it works with. Options of the
    config may be assigned at any time.
    """

    def __init__(self, config=None):
        if config is None:
            config = MemoryConfig()
        elif not isinstance(config, MemoryConfig):
            raise TypeError("stratalloc: MemoryManager takes a MemoryConfig, "
                            f"not {type(config).__name__}")
        self.config = config
        self.monitor = MemoryMonitor(config)
        self.strategies = OffloadStrategies(config)
        self._records = {}  # module_id -> Managed, in the order of wrapping
        self._counted = threading.Lock()
        self._offloads = self._bytes_out = 0
        self._workers = []  # [Ticker, Fetcher] while it is started
        self._fetcher = None
        self._ran = threading.local()
        self._disk_is_full = False
        self._over = False
        _endings.managers.add(self)
        # Threads that run while the interpreter ends may die inside of torch.
        weakref.finalize(self, _endings.stop, self._workers)
        weakref.finalize(self, _endings.forget, self._records,
                         self.strategies).atexit = False

    # Modules ------------------------------------------------------------------

    def wrap_module(self, module, module_id=None):
        """`module`, which this manager offloads from now on.

        It is the same object (wrapper.ModuleWrapper), with offload_all() and
        load_all(). Wrapping it again changes nothing; one of another manager's
        becomes this one's. `module_id` names it in what is told of it; by
        default its class does.

        Raises TypeError for what is no module that can be wrapped, ValueError
        for an id that another module of this manager has, RuntimeError after
        cleanup().
        """
        with wrapper.lock:
            self._still("wrap a module")
            record = self._wrap(module, module_id)
        if record is not None:
            self._begin([record])
        return module

    def wrap_model(self, model, layer_types=None):
        """`model`, of which every module of these types is wrapped.

        Args:
          layer_types: torch.nn.Module classes; None: nn.Linear alone. Called
            again with others it adds those.

        Raises TypeError, with nothing wrapped, for what is no module or no
        class of modules.
        """
        import torch

        types = _types(torch, layer_types)
        if not isinstance(model, torch.nn.Module):
            raise TypeError("stratalloc: wrap_model takes a torch.nn.Module, "
                            f"not {type(model).__name__}")
        found = [(name, module) for name, module in model.named_modules()
                 if isinstance(module, types)]
        for name, module in found:
            _refuse(module, f" ({name})")
        if not found:
            _log.warning(
                "stratalloc: memory_management: no %s in this %s, so nothing "
                "of it is offloaded; name others by layer_types",
                " or ".join(one.__name__ for one in types),
                type(model).__name__)
        with wrapper.lock:
            self._still("wrap a model")
            records = self._wrap_all(found)
        self._begin([record for record in records if record is not None])
        return model

    def _wrap_all(self, found):
        """[Managed or None] of (name, module) pairs; all of them or none."""
        # What cannot be derived from is found out before anything is wrapped.
        classes = [wrapper.wrapped_class(module) for _, module in found]
        records = []
        try:
            for name, module in found:
                records.append(self._wrap(module, None, name))
        except BaseException:
            for record in filter(None, records):
                self._records.pop(record.module_id, None)
                wrapper.unwrap(record.module())
            raise
        del classes
        return records

    def _wrap(self, module, module_id, name=""):
        """The new Managed of a module; None if this manager has it."""
        _refuse(module)
        record = wrapper.managed(module)
        mine = record is not None and record.manager() is self
        if module_id is not None:
            taken = self._alive().get(module_id)
            if taken is not None and not (mine and taken is record):
                raise ValueError(
                    f"stratalloc: module_id={module_id!r} is the name of "
                    f"another module of this manager; give each its own")
        if mine:
            if module_id is not None:
                del self._records[record.module_id]
                record.module_id = module_id
                self._records[module_id] = record
            return None
        if module_id is None:
            module_id = self._free_id(name or type(module).__name__)
        made = wrapper.Managed(self, module, module_id)
        wrapper.wrap(module, made)
        other = None if record is None else record.manager()
        if other is not None:
            _log.info("stratalloc: memory_management: %s has another manager "
                      "from now on", record.module_id)
            other._records.pop(record.module_id, None)
        self._records[module_id] = made
        return made

    def _begin(self, records):
        tensors = [one for record in records for one in record.tensors()]
        self.strategies.watch(tensors, [
            inner for record in records
            for inner in getattr(record.module(), "modules", list)()])
        del tensors
        for record in records:
            with wrapper.lock:
                if self._over:
                    return  # cleanup() was quicker
                tensors = record.tensors()
                self._obey(tensors)
                if self.config.eager_offload_on_wrap:
                    record.away = True
                    self.send_out(record, tensors)

    def _free_id(self, wanted):
        alive, number, found = self._alive(), 2, wanted
        while found in alive:
            found, number = f"{wanted}#{number}", number + 1
        return found

    def _alive(self):
        """{module_id: Managed} of modules that have not been freed."""
        for module_id, record in list(self._records.items()):
            if record.module() is None:
                self._records.pop(module_id, None)
        return self._records

    def records(self):
        """[Managed] of every module that it has now."""
        with wrapper.lock:
            return list(self._alive().values())

    # Moves --------------------------------------------------------------------

    def offload(self, record):
        """What offload_all() of a module does."""
        tensors = record.tensors()
        self._obey(tensors)
        record.away = True
        return self.send_out(record, tensors)

    def send_out(self, record, tensors):
        """Tensors of a module leave, to the tiers that the config says now;
        what stays is what did when the program last asked."""
        if self._disk_is_full:
            self.mind_disk()
        self.strategies.apply_tiers(tensors)
        if self._disk_is_full:
            self._close_disk(tensors, True)
        moved = self.strategies.offload(tensors, self._disk_is_full)
        self.count_out(record, moved)
        if moved:
            self.mind_disk()
        return moved

    def load(self, record):
        """What load_all() of a module does."""
        record.away = False
        return self.strategies.load(record.tensors())

    def count_out(self, record, moved):
        """One offload of a module, if any byte of it left."""
        if moved:
            with self._counted:
                record.offloads += 1
                self._offloads += 1
                self._bytes_out += moved

    def offload_all(self):
        """Offloads every module of this manager; returns the bytes."""
        return sum(map(self.offload, self.records()))

    def load_all(self):
        """Brings back every module of this manager, in the order in which they
        were wrapped; returns the bytes. Raises torch.OutOfMemoryError, as
        stratalloc.restore() does, when they do not fit."""
        return sum(map(self.load, self.records()))

    def moved(self, record):
        """The module's tensors are on another device, or of another dtype."""
        tensors = record.tensors()
        self._obey(tensors)
        if record.away:
            self.send_out(record, tensors)

    def _obey(self, tensors):
        """The allocator has the rules that the config says now, for the memory
        that tensors have now; on a thread of the program's, since memory may
        get another address."""
        self.strategies.apply(tensors)
        if self._disk_is_full:
            self._close_disk(tensors, True)

    def mind_disk(self):
        """On the disk is no more of this manager's than max_disk_usage_gb."""
        if self.strategies.spills():
            return  # its files have that quota
        quota = self.monitor.disk(0).total
        full = (_rounds.below("disk") >= quota > 0
                and self._residency()["disk"] >= quota)
        if full != self._disk_is_full:
            self._disk_is_full = full
            for record in self.records():
                self._close_disk(record.tensors(), full)

    def _close_disk(self, tensors, full):
        """What is not on the disk may go to the host alone, or there again."""
        if full:
            tensors = [one for one in tensors if one.device.type == "cuda"
                       and not self.strategies.residency([one])["disk"]]
        self.strategies.apply_tiers(tensors, full)

    # Use ----------------------------------------------------------------------

    @contextlib.contextmanager
    def present(self, record):
        """While a module runs that is in host memory: it is there, and what
        ran next last time is fetched meanwhile."""
        ran = self._ran
        before = getattr(ran, "record", None)
        if before is not None and before is not record:
            before.next = weakref.ref(record)
        ran.record = record
        with spilled.in_use(record.tensors()):
            fetcher, coming = self._fetcher, record.next()
            if fetcher is not None and coming is not None and coming.away:
                fetcher.give(record.next)
            yield

    def _fetch(self, record):
        if self.config.prefetch_enabled and record.away and (
                self.monitor.cpu().ratio < self.config.cpu_offload_threshold):
            self.load(record)

    def offload_if_full(self, record):
        """After a forward pass, for aggressive_post_forward_offload."""
        if self.monitor.gpu().ratio >= _rounds.gpu_threshold(self.config):
            self.offload(record)

    # The thread ---------------------------------------------------------------

    def start(self):
        """It offloads by itself from now on. Again: nothing.

        Raises RuntimeError after cleanup()."""
        with wrapper.lock:
            self._still("start")
            if self._workers:
                return
            self._workers.append(workers.Ticker(
                self._look, self.config.memory_check_interval))
            if self.strategies.spills():
                self._fetcher = workers.Fetcher(self._fetch)
                self._workers.append(self._fetcher)

    @property
    def is_running(self):
        """Whether the thread that looks runs."""
        return any(one.is_alive for one in self._workers[:1])

    def _look(self):
        self.check_memory()
        return self.config.memory_check_interval

    def check_memory(self):
        """One look, as the thread takes it: makes room where it is short.

        Returns the bytes that left a GPU or host memory."""
        self.mind_disk()
        moved = _rounds.relieve_gpus(self) + _rounds.relieve_host(self)
        if moved and self.config.empty_cache_after_offload:
            import torch

            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
        return moved

    def cleanup(self):
        """Ends the threads, brings back what is in its own files, removes these
        and makes the modules plain ones. Again: nothing.

        What is away from a GPU stays there until it is used: the allocator
        brings it back without a manager, too. Where the files cannot be read
        back it raises, and nothing is given up: call it again.
        """
        _endings.stop(self._workers)
        self._fetcher = None
        with wrapper.lock:
            _endings.let_go(self._records, self.strategies, self)
            self._over = True

    def _still(self, what):
        if self._over:
            raise RuntimeError(
                f"stratalloc: cannot {what}: cleanup() has ended this manager; "
                "make another one")

    # What is told -------------------------------------------------------------

    def _residency(self):
        return self.strategies.residency(list({
            id(tensor): tensor for record in self.records()
            for tensor in record.tensors()}.values()))

    def get_memory_summary(self):
        """A dict of dicts:

          gpu, cpu, disk: `used` and `total` bytes, `usage_ratio`; gpu is the
            one that is fullest, all are its `devices` by index.
          system: `managed_modules`; `total_offloads`, how often one of them
            left; `bytes_offloaded` and `bytes_loaded` by this manager; bytes
            that they have now on `device`, `host` and `disk`; `is_running`.

        disk is this manager's part of max_disk_usage_gb. Works without a GPU.
        """
        where = self._residency()
        gpus = self.monitor.gpus()
        with self._counted:
            system = {"managed_modules": len(self.records()),
                      "total_offloads": self._offloads,
                      "bytes_offloaded": self._bytes_out,
                      "bytes_loaded": self.strategies.bytes_in(), **where,
                      "is_running": self.is_running}
        on_disk = where["disk"] + self._stored_less(where)
        return {"gpu": {**_told(self.monitor.gpu()),
                        "devices": {i: _told(one) for i, one in gpus.items()}},
                "cpu": _told(self.monitor.cpu()),
                "disk": _told(self.monitor.disk(on_disk)),
                "system": system}

    def _stored_less(self, where):
        """Its own files take less than what is in them; they are compressed."""
        return (self.strategies.stored() - where["disk"]
                if self.strategies.spills() else 0)

    def memory_info(self, record):
        """What get_memory_info() of a module tells."""
        module = record.module()
        parameters = list(module.parameters())
        where = self.strategies.residency(record.tensors())
        return {"module_id": record.module_id,
                "total_parameters": len(parameters),
                "offloaded_parameters": sum(
                    map(self.strategies.is_offloaded, parameters)),
                **where, "offloads": record.offloads,
                "is_offloaded": where["disk"] > 0 or any(
                    map(self.strategies.is_offloaded, record.tensors()))}


def _told(usage):
    return {"used": usage.used, "total": usage.total,
            "usage_ratio": usage.ratio}


def _types(torch, layer_types):
    if layer_types is None:
        return (torch.nn.Linear,)
    if isinstance(layer_types, type):
        layer_types = (layer_types,)
    try:
        types = tuple(layer_types)
    except TypeError:
        types = (layer_types,)
    if not types or not all(isinstance(one, type)
                            and issubclass(one, torch.nn.Module)
                            for one in types):
        raise TypeError("stratalloc: layer_types takes classes of modules, as "
                        f"[torch.nn.Linear], not {layer_types!r}")
    return types


def _refuse(module, where=""):
    reason = wrapper.why_not(module)
    if reason is not None:
        raise TypeError(f"stratalloc: cannot wrap this{where}: {reason}")
