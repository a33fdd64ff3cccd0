# SPDX-License-Identifier: Apache-2.0
"""One look of a manager's monitor: who leaves, and how much.

A GPU at or above its threshold loses modules, the ones that ran longest ago
first, until it is below gpu_reload_threshold or offload_batch_size of them have
left; above the emergency threshold there is no such number. Host memory at or
above its own sends on to disk what was evicted to it (without a GPU: the
modules themselves), until it is below that.

Thread-safety: any thread. Fails: as OffloadStrategies does.
"""

import time

from stratalloc.compat._package import TIERS, core as _core


def gpu_threshold(config):
    """The ratio from which modules leave a GPU."""
    return min(config.gpu_offload_threshold, 1 - config.min_free_gpu_memory)


def below(tier):
    """Bytes that the allocator has for this process in a tier (of TIERS)."""
    return sum(_core.metrics(index)[0].below[TIERS.index(tier)]
               for index in range(_core.device_count()))


def relieve_gpus(manager):
    """Bytes that left GPUs which are too full."""
    config, moved = manager.config, 0
    for index, usage in manager.monitor.gpus().items():
        if usage.ratio < gpu_threshold(config):
            continue
        emergency = usage.ratio >= config.gpu_emergency_threshold
        goal = usage.used - config.gpu_reload_threshold * usage.total

        def send_out(record, index=index):
            return manager.send_out(record, [
                one for one in record.tensors()
                if one.device.type == "cuda" and one.device.index == index])

        moved += _leave(manager, goal, emergency, send_out)
    return moved


def relieve_host(manager):
    """Bytes that left host memory, if that is too full."""
    config = manager.config
    if not manager.strategies.spills() and not below("host"):
        return 0  # to ask for the machine's memory costs more than all of this
    usage = manager.monitor.cpu()
    if usage.ratio < config.cpu_offload_threshold:
        return 0
    emergency = usage.ratio >= config.cpu_emergency_threshold
    goal = usage.used - config.cpu_offload_threshold * usage.total

    def demote(record):
        left = manager.strategies.demote(record.tensors())
        manager.count_out(record, left)
        return left

    return _leave(manager, goal, emergency, demote)


def _leave(manager, goal, emergency, leave):
    config = manager.config
    records = sorted(manager.records(), key=lambda one: one.last_used)
    now, left, moved = time.monotonic(), 0, 0
    for record in records:
        if moved > goal:
            break
        if not emergency and left >= config.offload_batch_size:
            break
        if not emergency and (
                now - record.last_used < config.time_since_forward_threshold):
            break  # and all behind it
        gone = leave(record)
        moved += gone
        left += gone > 0
    return moved
