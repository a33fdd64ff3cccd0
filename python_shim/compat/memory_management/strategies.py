# SPDX-License-Identifier: Apache-2.0
"""OffloadStrategies: the ways between the tiers that one manager may take.

Where a tensor is decides, each time it is asked:

  on a GPU, the allocator ours   stratalloc.evict and restore, under rules of
                                 this manager's tensors (_tiering/rules.py)
  on a GPU, torch's allocator    it stays
  in host memory, no GPU of ours it goes to a file of this manager (spilled.py)
  in host memory beside one      it stays: the GPU is what is short

Thread-safety: any thread. Fails: RuntimeError of a GPU that takes no part in
tiering; torch.OutOfMemoryError of load() where there is no room. A cache that
is full or cannot be written is a warning of the logger: what would have gone
there stays.
"""

import functools
import logging
import threading

from stratalloc.compat._package import (gpus as _gpus, state as _state,
                                        tiers as _tiers)
from stratalloc.compat.memory_management import spilled
from stratalloc.compat.memory_management.monitor import GIB
from stratalloc.compat.memory_management.steps import steps

_log = logging.getLogger("stratalloc")
CODEC = "lz4"  # as fast as disks are; half of what zstd saves (tiering/io)


class OffloadStrategies:
    """Moves tensors out of memory and back, as a manager's config allows."""

    def __init__(self, config):
        self.config = config
        self._lock = threading.Lock()
        self._files = []  # the one that is written last
        self._asked = None  # how that one was made
        self._hears_steps = False
        self._said_full = False
        self._bytes_restored = 0
        self.bytes_read = 0  # counted by spilled.py, under its lock
        self.closed = False

    # What may leave ---------------------------------------------------------

    def may_leave(self, tensor):
        """Is this one of the tensors that are moved at all?"""
        return self.config.offload_1d_parameters or tensor.dim() > 1

    def _sorted(self, tensors):
        """(those that move, those that stay). Of several in one memory, as
        cuDNN wants an RNN's weights, all move if one does."""
        moving = [one for one in tensors if self.may_leave(one)]
        taken = {where for one in moving for where in _storages_of(one)}
        staying = []
        for one in tensors:
            if not self.may_leave(one):
                shared = taken.intersection(_storages_of(one))
                (moving if shared else staying).append(one)
        return moving, staying

    def _disk(self):
        config = self.config
        return config.enable_disk_offload and config.max_disk_usage_gb > 0

    def spills(self):
        """Do modules in host memory go to files of this manager's own?"""
        return not (_state.is_enabled() and _may_find_gpu())

    def watch(self, tensors, modules):
        """Uses of what may be spilled are seen from now on (spilled.py)."""
        if self.spills():
            spilled.watch([one for one in tensors if self.may_leave(one)],
                          self, modules)

    def apply(self, tensors):
        """Gives the allocator the rules for `tensors`, for those that move and
        those that stay; on whatever device they are or will be.

        What begins or ceases to stay is copied to another address: nobody may
        use it meanwhile on another thread."""
        if self.spills():
            return
        from stratalloc.compat._package import rules as _tier_rules

        moving, staying = self._sorted(tensors)
        _tier_rules.apply(moving, **self._tiers())
        _tier_rules.apply(staying, stay=True)

    def apply_tiers(self, tensors, disk_is_full=False):
        """Of what moves: to which tiers. Nothing is copied, so what lies where
        it stays is passed over; any thread."""
        if self.spills():
            return
        from stratalloc.compat._package import rules as _tier_rules

        _tier_rules.apply(
            [one for one in self._sorted(tensors)[0] if not _stays(one)],
            **self._tiers(disk_is_full))

    def _tiers(self, disk_is_full=False):
        config = self.config
        host, disk = config.enable_cpu_offload, self._disk()
        if not (host or disk):
            host = disk = True  # offload() moves nothing then
        return {"host": host, "disk": disk and not (disk_is_full and host),
                "compress": CODEC if config.compress_disk_cache else False}

    def clear(self, tensors):
        """Takes the rules back; as apply()."""
        if not self.spills():
            from stratalloc.compat._package import rules as _tier_rules

            _tier_rules.clear(tensors)

    def clear_tiers(self, tensors):
        """Takes back the rules of what does not stay; as apply_tiers()."""
        if not self.spills():
            from stratalloc.compat._package import rules as _tier_rules

            _tier_rules.clear([one for one in tensors if not _stays(one)])

    # Moves ------------------------------------------------------------------

    def offload(self, tensors, disk_is_full=False):
        """Bytes of `tensors` that left the GPU, or memory where there is none.

        What is in use stays, and what the config says shall stay."""
        on_gpu, in_memory = self._ways(tensors)
        host, disk = self.config.enable_cpu_offload, self._disk()
        moved = 0
        if on_gpu and (host or (disk and not disk_is_full)):
            moved += _tiers.evict(on_gpu)
        if in_memory and disk:
            moved += self._spill(in_memory)
        return moved

    def demote(self, tensors):
        """Bytes of `tensors` that left host memory for the disk."""
        on_gpu, in_memory = self._ways(tensors)
        if not self._disk():
            return 0
        moved = self._spill(in_memory) if in_memory else 0
        if on_gpu and _state.active.disk_budget:
            moved += _tiers.evict(
                [one for one in on_gpu if self.residency([one])["host"]],
                to="disk")
        return moved

    def load(self, tensors):
        """Bytes of `tensors` that came back."""
        on_gpu, in_memory = self._ways(tensors)
        moved = _tiers.restore(on_gpu) if on_gpu else 0
        with self._lock:
            self._bytes_restored += moved
        return moved + sum(map(spilled.restore, in_memory))

    def bytes_in(self):
        """Bytes that load() brought back to a GPU, and that came back from
        this manager's files, by load() or by a use."""
        return self._bytes_restored + self.bytes_read

    # What is where ----------------------------------------------------------

    def residency(self, tensors):
        """Bytes of `tensors` as {"device", "host", "disk"}; a byte that two
        of them share counts once."""
        found = dict.fromkeys(("device", "host", "disk"), 0)
        ours, seen = _state.is_enabled(), set()
        on_gpu = []
        for tensor in tensors:
            away = spilled.bytes_away(tensor)
            if away:
                found["disk"] += away
            elif tensor.device.type == "cuda" and ours:
                on_gpu.append(tensor)
            elif not tensor.is_meta:
                tier = "host" if tensor.device.type == "cpu" else "device"
                for part in _strided(tensor):
                    storage = part.untyped_storage()
                    if storage._cdata not in seen:
                        seen.add(storage._cdata)
                        found[tier] += storage.nbytes()
        if on_gpu:
            for tier, size in _tiers.residency(on_gpu).items():
                found[tier] += size
        return found

    def is_offloaded(self, tensor):
        """Is any byte of it neither on its GPU nor, without one, in memory?"""
        if spilled.is_away(tensor):
            return True
        if tensor.device.type != "cuda" or not _state.is_enabled():
            return False
        where = _tiers.residency(tensor)
        return where["host"] + where["disk"] > 0

    def stored(self):
        """Bytes that this manager's own files take on the disk."""
        with self._lock:
            return sum(file.stored for file in self._files)

    def close(self):
        """Gives up the files: one in which something is lives until that has
        come back or is gone. Nothing is spilled from now on."""
        with self._lock:
            self.closed = True
            files, self._files, self._asked = self._files, [], None
            if self._hears_steps:
                steps.end()
            self._hears_steps = False
        del files

    def after_fork(self):
        """In the child of a fork: a thread that is gone may have held it."""
        self._lock = threading.Lock()

    # ------------------------------------------------------------------------

    def _ways(self, tensors):
        """(those of a GPU of ours, those in host memory that may be spilled)"""
        ours, spills = _state.is_enabled(), self.spills()
        on_gpu, in_memory = [], []
        for tensor in tensors:
            if spilled.is_away(tensor):
                in_memory.append(tensor)
            elif not self.may_leave(tensor):
                continue
            elif tensor.device.type == "cuda":
                if ours:
                    on_gpu.append(tensor)
            elif tensor.device.type == "cpu" and spills:
                in_memory.append(tensor)
        return on_gpu, in_memory

    def _spill(self, tensors):
        moved = 0
        for tensor in tensors:
            try:
                file = self._file()
                if file is None:
                    break
                moved += spilled.offload(tensor, file, self)
            except (RuntimeError, ValueError, MemoryError) as error:
                if not self._said_full:
                    self._said_full = True
                    _log.warning("stratalloc: memory_management: what would "
                                 "go to the disk cache stays in memory: %s",
                                 str(error))  # which had the file
                break
        return moved

    def _file(self):
        """Where to write now; None after close()."""
        config = self.config
        asked = (config.disk_cache_dir, config.max_disk_usage_gb,
                 config.compress_disk_cache)
        with self._lock:
            if self.closed:
                return None
            if asked != self._asked:
                from stratalloc.compat._package import spill as _spill

                # Whoever writes to one at this moment still has it.
                self._files = [one for one in self._files if one.used]
                left = int(config.max_disk_usage_gb * GIB) - sum(
                    file.stored for file in self._files)
                self._files.append(_spill.SpillFile(
                    config.disk_cache_dir, quota=max(left, 0),
                    codec=CODEC if config.compress_disk_cache else "off"))
                self._asked = asked
                if not self._hears_steps:
                    steps.begin()
                self._hears_steps = True
            return self._files[-1]


def _strided(tensor):
    """The tensors with a storage that a tensor consists of."""
    import torch

    compressed = {
        torch.sparse_csr: ("crow_indices", "col_indices"),
        torch.sparse_bsr: ("crow_indices", "col_indices"),
        torch.sparse_csc: ("ccol_indices", "row_indices"),
        torch.sparse_bsc: ("ccol_indices", "row_indices")}
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in compressed:
        return [getattr(tensor, name)() for name in (
            *compressed[tensor.layout], "values")]
    return []  # nobody can tell what oneDNN has


def _stays(tensor):
    """Is it where nothing leaves, or is it to be?"""
    from stratalloc.compat._package import (LIFETIME_STAYING, core as _core,
                                            rules as _tier_rules)

    rule = _tier_rules.rule_of(tensor)
    if rule is not None and rule.stays:
        return True
    return _core.initialized() and any(
        _core.placement(address).lifetime == LIFETIME_STAYING
        for _, address, _ in _storages_of(tensor))


def _storages_of(tensor):
    from stratalloc.compat._package import storages as _storages

    try:
        return _storages.of(tensor)  # none for one in host memory
    except TypeError:  # without memory, or nobody can tell where that is
        return []


@functools.cache
def _may_find_gpu():
    import torch

    return _gpus.why_none(torch) is None
