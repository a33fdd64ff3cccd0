# SPDX-License-Identifier: Apache-2.0
"""Unmodified PyTorch on the simulated device, without any of our allocator.

The device reads its settings once, so each case is a process of its own.
"""

import os
import textwrap

from bazel import programs

LIBRARIES = os.environ.get("CUDASIM_LIBRARIES", "tests/simulator/cudasim")
LOAD = """
import ctypes
for name in ("libnvidia-ml.so.1", "libcuda.so.1", "libcudart.so.13"):
    simulated = ctypes.CDLL({place!r} + "/" + name, ctypes.RTLD_GLOBAL)
simulated = ctypes.CDLL({place!r} + "/libcuda.so.1")
"""


def run(script, expect=0, **settings):
    """Runs the script after loading the device; returns stdout and stderr."""
    environment = dict(os.environ)
    for name, value in settings.items():
        prefix = "" if name == "PYTORCH_ALLOC_CONF" else "CUDASIM_"
        environment[prefix + name] = value
    load = LOAD.format(place=os.path.abspath(LIBRARIES))
    result = programs.run("-c", load + textwrap.dedent(script),
                          env=environment)
    assert result.returncode == expect, result.stdout + result.stderr
    return result.stdout, result.stderr


EVERYDAY = """
import torch
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
properties = torch.cuda.get_device_properties(0)
assert (properties.major, properties.minor) == (9, 0)
assert properties.multi_processor_count == 132
assert str(torch.empty(4, device="cuda").device) == "cuda:0"
x = torch.arange(100_000, dtype=torch.float32)
y = x.cuda()
assert torch.equal(y.cpu(), x)
base = simulated.cudasim_arena_base
base.restype = __import__("ctypes").c_uint64
assert y.data_ptr() >= base()
pinned = x.pin_memory()
assert pinned.is_pinned() and not x.is_pinned()
side = torch.cuda.Stream()
before = torch.cuda.Event(enable_timing=True)
after = torch.cuda.Event(enable_timing=True)
before.record()
with torch.cuda.stream(side):
    z = pinned.to("cuda", non_blocking=True)
after.record(side)
torch.cuda.current_stream().wait_event(after)
z.record_stream(torch.cuda.current_stream())
assert torch.equal(z.cpu(), x)
after.synchronize()
assert after.query() and before.elapsed_time(after) >= 0
side.synchronize()
stats = torch.cuda.memory_stats()
assert stats["allocated_bytes.all.current"] == 800_768
assert torch.cuda.memory_reserved() == 4 << 20
free, total = torch.cuda.mem_get_info()
assert total == 256 << 20 and free == total - (4 << 20)
del y, z
torch.cuda.synchronize()
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() == 0
assert simulated.cudasim_violation_count() == 0
print("done")
"""


def test_everyday_use_in_eager_mode():
    out, _ = run(EVERYDAY, MEMORY="256MiB")
    assert out == "done\n"


def test_everyday_use_in_async_mode():
    for seed in ("0", "1"):
        out, _ = run(EVERYDAY, MEMORY="256MiB", MODE="async", SEED=seed)
        assert out == "done\n"


def test_native_allocator_runs_out_of_memory_with_its_own_text():
    out, _ = run(
        """
        import torch
        kept = []
        try:
            while True:
                kept.append(torch.empty(4 << 20, device="cuda"))
        except torch.OutOfMemoryError as error:
            print(len(kept), str(error).split(" is free.")[0])
        """,
        MEMORY="64MiB",
    )
    assert out == (
        "4 CUDA out of memory. Tried to allocate 16.00 MiB. GPU 0 has a total "
        "capacity of 64.00 MiB of which 0 bytes\n"
    )


def test_expandable_segments_use_the_drivers_virtual_memory():
    out, _ = run(
        """
        import torch
        kept = [torch.empty(3 << 20, device="cuda") for _ in range(5)]
        x = torch.arange(1000.0)
        assert torch.equal(x.cuda().cpu(), x)
        assert simulated.cudasim_live_mappings() >= 3
        del kept
        torch.cuda.empty_cache()
        assert simulated.cudasim_live_mappings() == 0
        assert simulated.cudasim_violation_count() == 0
        print("done")
        """,
        MODE="async",
        PYTORCH_ALLOC_CONF="expandable_segments:True",
    )
    assert out == "done\n"


def test_device_is_of_no_older_cuda_than_torch():
    out, _ = run(
        """
        import torch
        major, minor = map(int, torch.version.cuda.split("."))
        numbers = [1000 * major + 10 * minor]
        for name, function in (("libcudart.so.13", "cudaRuntimeGetVersion"),
                               ("libcuda.so.1", "cuDriverGetVersion")):
            number = ctypes.c_int()
            getattr(ctypes.CDLL(name), function)(ctypes.byref(number))
            numbers.append(number.value)
        assert numbers == sorted(numbers), numbers
        print("done")
        """
    )
    assert out == "done\n"


def test_profiler_of_the_device_shows_its_memory():
    out, _ = run(
        """
        import torch
        from torch.profiler import ProfilerActivity
        x = torch.arange(1000.0)
        with torch.profiler.profile(
                activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
                profile_memory=True) as profile:
            y = x.cuda()
        rows = {row.key: row for row in profile.key_averages()}
        print(rows["aten::empty_strided"].device_memory_usage)
        """
    )
    assert out.splitlines()[-1] == "4096"


def test_a_kernel_launch_is_an_error_that_names_the_kernel():
    out, err = run(
        """
        import torch
        x = torch.empty(1000, device="cuda")
        try:
            x.add_(1)
        except RuntimeError as error:
            print("not supported" in str(error))
        assert simulated.cudasim_launches_without_twin() == 1
        try:
            torch.ones(3).cuda()
        except RuntimeError as error:
            print("still broken")
        """
    )
    assert out == "True\nstill broken\n"
    assert "vectorized_elementwise_kernel" in err
    assert "cudaErrorNotSupported" in err


def test_shape_only_runs_say_so():
    _, err = run(
        """
        import torch
        print((torch.empty(8, device="cuda") + 1).shape)
        """,
        NOOP_LAUNCH="1",
    )
    assert "1 kernel launches did nothing" in err


def test_a_planned_failure_reaches_torch():
    out, _ = run(
        """
        import torch
        torch.empty(1, device="cuda")
        try:
            torch.empty(4 << 20, device="cuda")
        except torch.OutOfMemoryError:
            print("refused")
        """,
        FAIL="cudaMalloc:2:2:forever",
    )
    assert out == "refused\n"


def test_leaks_are_reported_at_exit(tmp_path):
    report = tmp_path / "leaks"
    run(
        """
        import torch
        kept = torch.empty(4 << 20, device="cuda")
        import builtins; builtins.kept = kept
        """,
        LEAK_REPORT=str(report),
    )
    text = report.read_text()
    assert "allocation 0x51" in text
    assert "launches without a host twin: 0\nrefused calls: 0\n" in text


def test_what_was_refused_is_listed_at_exit():
    _, err = run(
        """
        import torch
        x = torch.empty(9, device="cuda")
        try:
            x.abs_()
        except RuntimeError:
            pass
        ctypes.CDLL("libcudart.so.13").cudaGLSetGLDevice(0)
        simulated.cuLinkDestroy(0)
        """,
    )
    assert "cudasim: in this run:\nlaunches without a host twin: 1 (" in err
    assert "refused calls: 2 (cuLinkDestroy 1, cudaGLSetGLDevice 1)" in err


def test_settings_that_make_no_sense_end_the_process():
    for settings in (
        {"MEMORY": "64 megabytes"},
        {"MODE": "lazy"},
        {"DEVICES": "99"},
        {"FAIL": "cudaMalloc"},
        {"FAIL": "cudaMallok:1:2"},
        {"CARD": "h2000"},
        {"PROFILE": "no/such/file"},
        {"CALL_NS": "fast"},
        {"PINNED": "much"},
        {"TAKEN": "0:much"},
        {"SLOW_COPIES": "sideways:2"},
    ):
        (name,) = settings
        _, err = run("simulated.cudasim_mode()", expect=2, **settings)
        assert name in err and "cannot be used" in err


def test_a_forked_child_has_no_device():
    out, _ = run(
        """
        import os, torch
        torch.ones(3).cuda()
        child = os.fork()
        if child == 0:
            status = 0
            try:
                torch.ones(3).cuda()
            except RuntimeError as error:
                status = 7 if "fork" in str(error) else 8
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert out == "7\n"


def test_libraries_that_need_their_own_runtime_fail_cleanly():
    out, _ = run(
        """
        import torch
        x = torch.empty(4, 4, device="cuda")
        try:
            x @ x
        except RuntimeError as error:
            print("CUBLAS_STATUS_NOT_INITIALIZED" in str(error))
        """
    )
    assert out == "True\n"


def test_two_devices():
    out, _ = run(
        """
        import torch
        assert torch.cuda.device_count() == 2
        x = torch.arange(1000.0)
        y = x.to("cuda:1")
        z = y.to("cuda:0")
        assert z.get_device() == 0 and torch.equal(z.cpu(), x)
        used = simulated.cudasim_used
        used.restype = __import__("ctypes").c_uint64
        print(used(0), used(1))
        """,
        DEVICES="2",
    )
    assert out == "2097152 2097152\n"
