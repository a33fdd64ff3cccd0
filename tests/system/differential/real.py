# SPDX-License-Identifier: Apache-2.0
"""A GPU in the place of the simulated device: the control functions that
programs use, of which it has none.

Calls that are planned to fail do not, under either allocator; nothing is
checked beyond what the two show. Work that is under way at one malloc and over
at the next would make a difference of nothing: steps wait for it.
"""

import os


def wanted():
    return os.environ.get("DIFFERENTIAL_DEVICE") == "cuda"


def settle():
    """Before each step: what an event waits for is over in both processes."""
    if not wanted():
        return
    import torch  # pylint: disable=import-outside-toplevel

    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)


class Real:
    """What Simulated of tests/simulator/cudasim/operator_bridge is otherwise."""

    def __init__(self):
        self.cuda = self

    @staticmethod
    def violations():
        return []

    @staticmethod
    def cudasim_fail(*_):
        return 0

    @staticmethod
    def cudasim_clear_faults():
        pass

    @staticmethod
    def cudasim_take_memory(*_):
        return 0

    @staticmethod
    def cudasim_hold_streams(_):
        pass

    @staticmethod
    def cudasim_run_stream(*_):
        return 0

    @staticmethod
    def cudasim_calls(_):
        return 0


def load(allocator):
    """torch on the GPU, under that allocator."""
    import torch  # pylint: disable=import-outside-toplevel,unused-import

    if allocator == "stratalloc":
        import stratalloc  # pylint: disable=import-outside-toplevel

        assert stratalloc.enable()
    return Real()
