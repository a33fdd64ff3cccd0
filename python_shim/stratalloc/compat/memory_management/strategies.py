# SPDX-License-Identifier: Apache-2.0
"""OffloadStrategies: the ways between the tiers that one manager may take.

Where a tensor is decides, each time it is asked:

  on a GPU, the allocator ours   stratalloc.evict and restore, under rules of
                                 this manager's tensors (_tier_rules.py)
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

from stratalloc import _enable
from stratalloc import _gpus
from stratalloc import _tiers
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

    def rules(self):
        """What the config says to the allocator, to be compared."""
        config = self.config
        return (config.offload_1d_parameters, config.enable_cpu_offload,
                config.enable_disk_offload and config.max_disk_usage_gb > 0,
                config.compress_disk_cache)

    def spills(self):
        """Do modules in host memory go to files of this manager's own?"""
        return not (_enable.is_enabled() and _may_find_gpu())

    def apply(self, tensors):
        """Gives the allocator the rules for `tensors`, for those that move and
        those that stay; on whatever device they are or will be.

        What begins or ceases to stay is copied to another address: nobody may
        use it meanwhile on another thread."""
        if self.spills():
            return
        from stratalloc import _tier_rules

        self.apply_tiers(tensors)
        _tier_rules.apply(self._sorted(tensors)[1], stay=True)

    def apply_tiers(self, tensors, disk_is_full=False):
        """Of what moves: to which tiers. Nothing is copied; any thread."""
        if self.spills():
            return
        from stratalloc import _tier_rules

        _, host, disk, compress = self.rules()
        if not (host or disk):
            host = disk = True  # offload() moves nothing then
        _tier_rules.apply(
            self._sorted(tensors)[0], host=host,
            disk=disk and not (disk_is_full and host),
            compress=CODEC if compress else False)

    def clear(self, tensors):
        """Takes the rules back; as apply()."""
        if not self.spills():
            from stratalloc import _tier_rules

            _tier_rules.clear(tensors)

    # Moves ------------------------------------------------------------------

    def offload(self, tensors, disk_is_full=False):
        """Bytes of `tensors` that left the GPU, or memory where there is none.

        What is in use stays, and what the config says shall stay."""
        on_gpu, in_memory = self._ways(tensors)
        _, host, disk, _ = self.rules()
        moved = 0
        if on_gpu and (host or (disk and not disk_is_full)):
            moved += _tiers.evict(on_gpu)
        if in_memory and disk:
            moved += self._spill(in_memory)
        return moved

    def demote(self, tensors):
        """Bytes of `tensors` that left host memory for the disk."""
        on_gpu, in_memory = self._ways(tensors)
        if not self.rules()[2]:
            return 0
        moved = self._spill(in_memory) if in_memory else 0
        if on_gpu and _enable.config().disk_budget:
            moved += _tiers.evict(
                [one for one in on_gpu if self.residency([one])["host"]],
                to="disk")
        return moved

    def load(self, tensors):
        """Bytes of `tensors` that came back."""
        on_gpu, in_memory = self._ways(tensors)
        moved = _tiers.restore(on_gpu) if on_gpu else 0
        return moved + sum(map(spilled.restore, in_memory))

    # What is where ----------------------------------------------------------

    def residency(self, tensors):
        """Bytes of `tensors` as {"device", "host", "disk"}; a byte that two
        of them share counts once."""
        found = dict.fromkeys(("device", "host", "disk"), 0)
        ours, seen = _enable.is_enabled(), set()
        on_gpu = []
        for tensor in tensors:
            away = spilled.bytes_away(tensor)
            if away:
                found["disk"] += away
            elif tensor.device.type == "cuda" and ours:
                on_gpu.append(tensor)
            elif not tensor.is_meta:
                storage = tensor.untyped_storage()
                if storage._cdata not in seen:
                    seen.add(storage._cdata)
                    tier = "host" if tensor.device.type == "cpu" else "device"
                    found[tier] += storage.nbytes()
        if on_gpu:
            for tier, size in _tiers.residency(on_gpu).items():
                found[tier] += size
        return found

    def is_offloaded(self, tensor):
        """Is any byte of it neither on its GPU nor, without one, in memory?"""
        if spilled.is_away(tensor):
            return True
        if tensor.device.type != "cuda" or not _enable.is_enabled():
            return False
        where = _tiers.residency(tensor)
        return where["host"] + where["disk"] > 0

    def stored(self):
        """Bytes that this manager's own files take on the disk."""
        with self._lock:
            return sum(file.stored for file in self._files)

    def close(self):
        """Removes the files. What was in them has been loaded before."""
        with self._lock:
            files, self._files, self._asked = self._files, [], None
            if self._hears_steps:
                steps.end()
            self._hears_steps = False
        for file in files:
            file.close()

    # ------------------------------------------------------------------------

    def _ways(self, tensors):
        """(those of a GPU of ours, those in host memory that may be spilled)"""
        ours, spills = _enable.is_enabled(), self.spills()
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
                moved += spilled.offload(tensor, self._file())
            except (RuntimeError, ValueError, MemoryError) as error:
                if not self._said_full:
                    self._said_full = True
                    _log.warning("stratalloc: memory_management: what would "
                                 "go to the disk cache stays in memory: %s",
                                 error)
                break
        return moved

    def _file(self):
        config = self.config
        asked = (config.disk_cache_dir, config.max_disk_usage_gb,
                 config.compress_disk_cache)
        with self._lock:
            if asked != self._asked:
                from stratalloc import _spill

                for file in [one for one in self._files if not one.used]:
                    self._files.remove(file)
                    file.close()
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


def _storages_of(tensor):
    from stratalloc import _storages

    try:
        return _storages.of(tensor)  # none for one in host memory
    except TypeError:  # without memory, or nobody can tell where that is
        return []


@functools.cache
def _may_find_gpu():
    import torch

    return _gpus.why_none(torch) is None
