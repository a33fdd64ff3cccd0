# SPDX-License-Identifier: Apache-2.0
"""enable() and its relatives, each in a process of its own on the simulated
device (what needs a whole program is in tests/system/e2e)."""

import os
import subprocess
import sys

from bazel import programs

# On a machine with a GPU the same can run there.
_SIMULATED = os.environ.get("STRATALLOC_TEST_DEVICE", "sim") == "sim"
_SIMULATE = ("from stratalloc import simulate\nsimulate.load({memory!r})\n"
             if _SIMULATED else "")


def _run(text, memory="64MiB", **environment):
    values = {key: value for key, value in os.environ.items()
              if not key.startswith("STRATALLOC")}
    return programs.run("-c", _SIMULATE.format(memory=memory) + text,
                        env={**values, **environment})


def _works(text, memory="64MiB", **environment):
    done = _run(text, memory, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_twice_is_fine():
    _works("""
import stratalloc
assert not stratalloc.is_enabled()
assert stratalloc.enable(host_budget="8MiB", disk_budget=0)
assert stratalloc.enable() and stratalloc.is_enabled()
assert stratalloc.config().host_budget == 8 << 20
""")


def test_settings_can_change_until_cuda_is_initialised():
    _works("""
import torch, stratalloc
stratalloc.enable(host_budget="8MiB", disk_budget=0)
assert stratalloc.enable(host_budget="16MiB", disk_budget=0)
assert stratalloc.config().host_budget == 16 << 20
torch.ones(1, device="cuda")
assert stratalloc.enable()
try:
    stratalloc.enable(host_budget="32MiB", disk_budget=0)
except RuntimeError as error:
    assert "host_budget" in str(error), error
else:
    raise SystemExit("changed under a running allocator")
assert stratalloc.config().host_budget == 16 << 20
""")


def test_enable_again_with_less_free_memory_changes_nothing():
    _works("""
import torch, stratalloc
from stratalloc import settings
free = iter(range(64, 0, -8))
settings.default_host_budget = lambda *_: next(free) << 20
stratalloc.enable(disk_budget="256MiB")
active = stratalloc.config()
assert active.host_budget == 64 << 20
torch.ones(1, device="cuda")
assert stratalloc.enable(disk_budget="256MiB")
# Named now, with the value that it has.
assert stratalloc.enable(disk_budget="256MiB", host_budget="64MiB")
assert stratalloc.config() == active
try:
    stratalloc.enable(disk_budget="128MiB")
except RuntimeError as error:
    assert "disk_budget" in str(error) and "host_budget" not in str(error)
else:
    raise SystemExit("changed under a running allocator")
""")


def test_bad_arguments():
    _works("""
import torch, stratalloc
for call, kind, word in (
        (lambda: stratalloc.enable(host_budjet=1), ValueError, "host_budget"),
        (lambda: stratalloc.enable(telemetry="loud"), ValueError, "loud"),
        (lambda: stratalloc.enable({"tiering": "on"}), TypeError, "Config"),
        (lambda: stratalloc.allocator(gpu_limit="x"), ValueError, "gpu_limit"),
):
    try:
        call()
    except kind as error:
        assert word in str(error), error
    else:
        raise SystemExit(word)
assert not stratalloc.is_enabled()
""")


def test_nothing_moves_before_it_is_enabled():
    _works("""
import torch, stratalloc
for call in (stratalloc.evict, stratalloc.restore):
    try:
        call()
    except RuntimeError as error:
        assert "not enabled" in str(error)
    else:
        raise SystemExit("moved")
stratalloc.enable()
assert stratalloc.report() == {} and stratalloc.stats() == {}
assert stratalloc.evict() == 0 and not torch.cuda.is_initialized()
assert "not initialised" in stratalloc.memory_summary()
""")


def test_evict_takes_what_users_have():
    _works("""
import torch, stratalloc
stratalloc.enable(host_budget="64MiB", disk_budget=0)
net = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
other = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
expected = net.weight.sum().item()
size = 4 << 20
assert stratalloc.evict(net.weight) == size
assert stratalloc.evict(net.weight) == 0
assert stratalloc.restore(net) == size
assert stratalloc.evict([net, other], device="cuda:0") == 2 * size
assert stratalloc.restore({"a": other}) == size
assert stratalloc.restore() == size
assert stratalloc.evict(net, device=0) == size
assert net.weight.sum().item() == expected
summary = stratalloc.memory_summary()
for words in ("tiering on", "evicted to host", "Linear", "parameter"):
    assert words in summary, summary
assert stratalloc.stats()["live"] >= 2 * size
for bad, kind in ((3.5j, TypeError), (net, ValueError)):
    try:
        stratalloc.evict(bad, device=None if kind is TypeError else "cpu")
    except kind:
        pass
    else:
        raise SystemExit(str(kind))
""")


def test_what_names_no_memory_is_refused():
    _works("""
import torch, stratalloc
stratalloc.enable(host_budget="64MiB", disk_budget=0)
def check():
    for call in (stratalloc.evict, stratalloc.restore, stratalloc.pin,
                 stratalloc.unpin):
        for bad in (3, True, 1.5, "abc", b"abc"):
            try:
                call(bad)
            except TypeError as error:
                assert "optimizer" in str(error), error
                assert ("device=" in str(error)) == isinstance(bad, int)
            else:
                raise SystemExit(f"{call.__name__}({bad!r})")
    for call in (stratalloc.pin, stratalloc.unpin):
        try:
            call(None)
        except TypeError:
            pass
        else:
            raise SystemExit(f"{call.__name__}(None)")
check()  # before CUDA runs, too
state = {"epoch": 3, "name": "abc", "none": None,
         "weights": [torch.ones(1 << 20, device="cuda"), 7]}
check()
assert stratalloc.evict(state) == 4 << 20 == stratalloc.restore(state)
assert stratalloc.pin(state) == 4 << 20 == stratalloc.unpin(state)
""")


_NO_GPU = """
import stratalloc
from stratalloc._native import gpus as _gpus
_gpus.why_none = lambda torch: "somebody sold it"
import sys
for way in (stratalloc.allocator, stratalloc.enable):
    print(bool(way()))
print(stratalloc.evict(), stratalloc.memory_summary())
"""


def test_a_machine_without_a_gpu_is_said_once():
    done = _run(_NO_GPU)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "True\nTrue\n0 stratalloc: CUDA is not initialised under this "
        "allocator\n")
    (line,) = done.stderr.splitlines()
    assert "no GPU here: somebody sold it" in line and "--simulate" in line
    done = _run(_NO_GPU, STRATALLOC_STRICT="1")
    assert done.returncode == 1
    assert "RuntimeError: stratalloc: torch will find no GPU" in done.stderr


def test_a_process_that_was_told_to_use_no_gpu_is_not_lectured():
    done = _run(_NO_GPU.replace("import sys", """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = ""
"""))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_another_allocator_is_not_replaced():
    _works("""
import torch, stratalloc
assert stratalloc.allocator() is not None
torch.cuda.memory.change_current_allocator(stratalloc.allocator())
torch.ones(1, device="cuda")
assert stratalloc.is_enabled()
""")


def test_tiering_off_installs_no_guard_and_moves_nothing():
    _works("""
import torch, stratalloc
stratalloc.enable(tiering=False)
block = torch.ones(1 << 20, device="cuda")
try:
    stratalloc.evict()
except RuntimeError as error:
    assert "tiering is off" in str(error)
else:
    raise SystemExit("evicted")
assert block.sum().item() == 1 << 20
from stratalloc._native import bridge as _bridge
assert not _bridge.lib().stratalloc_torch_guarded()
""")


def test_python_decisions_are_logged():
    text = _works("""
import logging, sys
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
import stratalloc
stratalloc.enable(host_budget="8MiB", disk_budget=0)
""")
    assert "stratalloc:enabled" in text and "host_budget=8388608" in text


_HOPELESS = """
import torch, stratalloc
for _ in range(2):
    assert stratalloc.enable(host_budget="1MiB", disk_budget=0)
weight = torch.nn.Parameter(torch.ones(1 << 20, device="cuda"))
assert stratalloc.evict() == 0 and weight.sum().item() == 1 << 20
"""


def test_a_budget_that_cannot_work_is_a_remark():
    done = _run(_HOPELESS)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines()
            if "nothing can be evicted" in line]
    assert len(said) == 1 and "host_budget of 1 MiB" in said[0], done.stderr
    assert "is spent" not in done.stderr, done.stderr
    done = _run("import logging, sys\n"
                "logging.basicConfig(stream=sys.stdout)\n" + _HOPELESS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("nothing can be evicted") == 1, done.stdout
    assert "nothing can be evicted" not in done.stderr


def test_budgets_that_work_are_no_remark():
    for budgets in ("", "host_budget='8MiB'", "host_budget=0"):
        done = _run(f"import stratalloc; stratalloc.enable({budgets})")
        assert done.returncode == 0, done.stderr
        assert "budget" not in done.stderr, done.stderr


def test_a_program_may_turn_remarks_off():
    done = _run("import logging\n"
                "logging.getLogger('stratalloc').setLevel('ERROR')\n"
                + _HOPELESS)
    assert done.returncode == 0, done.stderr
    assert "nothing can be evicted" not in done.stderr, done.stderr


def test_a_handle_is_no_larger_than_the_disk_alone_wants():
    _works("""
import torch, stratalloc
stratalloc.enable(host_budget=0, disk_budget="16MiB")
weight = torch.nn.Parameter(torch.ones(1 << 20, device="cuda"))
assert stratalloc.report()["handles"]["large_handle_bytes"] == 4 << 20
assert stratalloc.evict() > 0 and weight.sum().item() == 1 << 20
""", "2GiB")


def test_nowhere_to_evict_to_is_said_once():
    done = _run(_HOPELESS.replace('"1MiB"', "0").replace(
        "stratalloc.evict() == 0 and ", "") + """
try:
    stratalloc.evict()
except RuntimeError as error:
    assert "neither host memory nor a disk" in str(error), error
    assert "tiering" not in str(error), error
else:
    raise SystemExit("evicted")
""")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("nothing can be evicted") == 1, done.stderr


def test_a_directory_that_cannot_hold_a_file():
    _works("""
import torch, stratalloc
try:
    stratalloc.enable(disk_dir="/proc")
except ValueError as error:
    assert "'disk_dir'" in str(error) and "/proc" in str(error), error
else:
    raise SystemExit("said nothing")
assert torch.cuda.memory.get_allocator_backend() == "native"
assert stratalloc.enable()
""")


def test_the_core_knows_which_budget_was_given():
    _works("""
import stratalloc
from stratalloc._native import core as _core
told, configure = [], _core.configure
def watched(config, given):
    told.append((config.host_budget, given))
    configure(config, given)
_core.configure = watched
stratalloc.enable()
half = told[0][0]
stratalloc.enable(host_budget="8MiB")
stratalloc.enable(host_budget=0)
assert told == [(half, False), (8 << 20, True), (0, True)], told
""")


def test_what_torch_was_told_last_but_one_counts():
    """torch keeps of "expandable_segments:False" only the text, till the next."""
    _works("""
import torch, stratalloc
stratalloc.enable(tiering=False)
torch.ones(1, device="cuda")
kept = []
def expandable():
    kept.append(torch.empty(10 << 20, dtype=torch.uint8, device="cuda"))
    (found,) = [s["is_expandable"] for s in torch.cuda.memory_snapshot()
                if s["address"] <= kept[-1].data_ptr()
                < s["address"] + s["total_size"]]
    return found
assert expandable()
for said in (torch.cuda.memory._set_allocator_settings,
             torch._C._accelerator_setAllocatorSettings):
    said("expandable_segments:False")
    said("max_split_size_mb:100")
    assert not expandable()
    said("expandable_segments:True")
    said("max_split_size_mb:200")
    assert expandable()
""")


def test_async_simulation_of_two_devices():
    done = subprocess.run(
        [sys.executable, "-m", "stratalloc", "run", "--simulate", "64MiB",
         "--devices", "2", "--mode", "async", "--seed", "3", "-m", "timeit",
         "-n", "1", "-r", "1",
         "import torch; a = torch.ones(5, device='cuda:1'); "
         "assert torch.cuda.device_count() == 2 and a.sum().item() == 5"],
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 devices of 64 MiB in host memory, async mode" in done.stderr


def test_a_device_without_virtual_memory():
    text = """
import torch, stratalloc
assert stratalloc.enable(tiering=TIERING, host_budget="8MiB", disk_budget=0)
x = torch.ones(1 << 20, device="cuda")
y = torch.ones(1 << 20, device="cuda")
assert float((x + y).sum()) == 2 << 20
assert not torch.cuda.memory_snapshot()[0]["is_expandable"]
from stratalloc.cli import doctor
finding, = [each for each in doctor._findings() if each[0] == "virtual memory"]
assert finding[1] == "note" and "none on device 0" in finding[2], finding
"""
    if not _SIMULATED:  # no card of ours is without
        return
    for tiering, warnings in ((True, 1), (False, 0)):
        done = _run(text.replace("TIERING", str(tiering)), CUDASIM_VMM="off")
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert said.count("no virtual memory management") == warnings, said


def test_the_doctor_sees_virtual_memory():
    _works("""
from stratalloc.cli import doctor
finding, = [each for each in doctor._findings() if each[0] == "virtual memory"]
assert finding[1] == "ok", finding
""")
