# SPDX-License-Identifier: Apache-2.0
"""What CUDA calls cost their caller, split as a card's figures are.

Some calls cost the more, the more they have to do: per mapping that is granted
or taken away, per byte that is made or pinned. The simulated device charges a
call's own cost (`calls_ns`) and beside it a figure of the card for each mapping
or GiB (tests/simulator/cudasim/cards.h). So such a call is timed for two amounts, and the
line through both gives the two figures. All of it as the call's own cost would
be charged twice over for what it did.

Timed by the clock of the `card_profile.Device` that is given.
"""

import ctypes
import mmap
import statistics

from tests.gpu_kit.driver import Driver

MIB = 1 << 20
GIB = 1 << 30
_SIZE = 2 * MIB  # of a handle, and of what is not timed for two sizes
_MAPPINGS = 1, 64
_ROUNDS = 5  # at least
# Call -> the card's figure for what it does, and of how much that is one. All
# pinning has one figure: that of registering, as the host tier does.
_MORE = {
    "cuMemSetAccess": ("grant_ns", 1),
    "cuMemUnmap": ("unmap_ns", 1),
    "cuMemCreate": ("create_ns_per_gib", GIB),
    "cudaHostRegister": ("pin_ns_per_gib", GIB),
    "cudaHostAlloc": (None, GIB),
}

# What torch asks of CUDA in an operator like add_().
_OF_AN_OPERATOR = {"cudaGetDevice": 4, "cuDevicePrimaryCtxGetState": 2}


def measure(device):
    """`calls_ns`, and the figures of _MORE."""
    times = Times(device.now_ns)
    memory = mmap.mmap(-1, device.large,
                       flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(bytes(device.large))  # its pages are there
    view = (ctypes.c_char * device.large).from_buffer(memory)
    for _ in range(max(device.rounds, _ROUNDS)):
        for mappings in _MAPPINGS:
            _map(times, mappings)
        _make_and_pin(times, device, view)
    found = {"calls_ns": {}}
    for name in times.names():
        own, each = times.split(name)
        if name not in _MORE:
            own, each = times.of_least(name), 0
        found["calls_ns"][name] = round(own, 1)
        figure, unit = _MORE.get(name, (None, 1))
        if figure is not None:
            found[figure] = round(each * unit, 1)
    found["calls_ns"].update(_many_of_each(device))
    return found


def of_an_operator(calls_ns):
    """Nanoseconds of the calls inside of an operator, which are charged beside
    the card's `operator_ns`."""
    return sum(count * calls_ns[name]
               for name, count in _OF_AN_OPERATOR.items())


class Times:
    """Nanoseconds of calls, by name and by the amount of what they did."""

    def __init__(self, now_ns):
        self._now_ns = now_ns
        self._times = {}

    def timed(self, name, amount, function, *arguments):
        began = self._now_ns()
        result = function(*arguments)
        took = self._now_ns() - began
        self._times.setdefault(name, {}).setdefault(amount, []).append(took)
        return result

    def names(self):
        return list(self._times)

    def of_least(self, name):
        """The median for the least amount."""
        found = self._times[name]
        return statistics.median(found[min(found)])

    def split(self, name):
        """What the call costs by itself, and for each one of the amount."""
        found = self._times[name]
        least, most = min(found), max(found)
        cost = self.of_least(name)
        if least == most:
            return cost, 0
        more = statistics.median(found[most]) - cost
        each = max(more / (most - least), 0)
        return max(cost - each * least, 0), each


def _map(times, mappings):
    """A run of handles side by side, from its addresses to their end."""
    driver, size = Driver(), _SIZE * mappings

    def timed(name, *arguments):
        return times.timed(name, mappings, *arguments)

    address = timed("cuMemAddressReserve", driver.reserve, size)
    handles = [driver.create(_SIZE) for _ in range(mappings)]
    for index, handle in enumerate(handles):
        timed("cuMemMap", driver.map, address + index * _SIZE, _SIZE, handle)
    timed("cuMemSetAccess", driver.set_access, address, size)
    timed("cuMemUnmap", driver.unmap, address, size)
    for handle in handles:
        timed("cuMemRelease", driver.release, handle)
    timed("cuMemAddressFree", driver.free, address, size)


def _make_and_pin(times, device, memory):
    """A handle, memory of the device and of the host: little, and much."""
    driver, cudart = Driver(), device.cudart
    pointer = ctypes.c_void_p()
    for size in (_SIZE, device.large):
        bytes_ = ctypes.c_size_t(size)

        def timed(name, *arguments, size=size):
            status = times.timed(name, size, getattr(cudart, name), *arguments)
            if status:
                raise RuntimeError(f"{name} of {size} bytes answers {status}")

        handle = times.timed("cuMemCreate", size, driver.create, size)
        driver.release(handle)
        timed("cudaMalloc", ctypes.byref(pointer), bytes_)
        timed("cudaFree", pointer)
        timed("cudaHostAlloc", ctypes.byref(pointer), bytes_, 0)
        timed("cudaFreeHost", pointer)
        timed("cudaHostRegister", memory, bytes_, 0)
        timed("cudaHostUnregister", memory)


def _many_of_each(device):
    """Calls that take too little to be timed one by one."""
    torch, cudart = device.torch, device.cudart
    event = ctypes.c_void_p()
    cudart.cudaEventCreateWithFlags(ctypes.byref(event), 2)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    pinned = torch.zeros(4096, dtype=torch.uint8, pin_memory=True)
    on_device = torch.zeros(4096, dtype=torch.uint8, device="cuda")
    # A call through ctypes costs something itself: one of the C library's that
    # does nothing is taken off.
    nothing = ctypes.CDLL(None).abs
    empty = device.on_host(lambda: nothing(0))
    libcuda = ctypes.CDLL("libcuda.so.1")
    number, flags = ctypes.c_int(), ctypes.c_uint()
    result = {}
    for name, function in (
        ("cudaGetDevice", lambda: cudart.cudaGetDevice(ctypes.byref(number))),
        ("cuDevicePrimaryCtxGetState",
         lambda: libcuda.cuDevicePrimaryCtxGetState(
             0, ctypes.byref(flags), ctypes.byref(number))),
        ("cudaEventRecord", lambda: cudart.cudaEventRecord(event, stream)),
        ("cudaEventQuery", lambda: cudart.cudaEventQuery(event)),
        ("cudaStreamWaitEvent",
         lambda: cudart.cudaStreamWaitEvent(stream, event, 0)),
        ("cudaStreamSynchronize",
         lambda: cudart.cudaStreamSynchronize(stream)),
        ("cudaMemcpyAsync",
         lambda: cudart.cudaMemcpyAsync(
             ctypes.c_void_p(on_device.data_ptr()),
             ctypes.c_void_p(pinned.data_ptr()), ctypes.c_size_t(4096), 1,
             stream)),
    ):
        result[name] = round(max(device.on_host(function) - empty, 0), 1)
    torch.cuda.synchronize()
    cudart.cudaEventDestroy(event)
    return result
