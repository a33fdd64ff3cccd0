# SPDX-License-Identifier: Apache-2.0
"""Config: parsing, defaults, and errors that name key and value."""

import os
import re
import subprocess
import sys
import types

import pytest

from stratalloc._native import core as _core
from stratalloc import settings
from stratalloc import sizes
from stratalloc.settings import Config
from stratalloc.sizes import format_size
from stratalloc.sizes import parse_size


@pytest.mark.parametrize("text,size", [
    ("0", 0), ("4096", 4096), ("512B", 512), ("1KiB", 1024),
    ("32MiB", 32 << 20), ("7.67MiB", 8042578), ("2GiB", 2 << 30), ("1.5GiB", 3 << 29),
    ("1TiB", 1 << 40), ("32mib", 32 << 20), (" 7 MiB ", 7 << 20),
])
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", [
    "", "-1", "MiB", "32MB", "1.5B", "0x10", "1e9", "32MiBs", "9999999TiB",
    "inf", "nan",
])
def test_bad_sizes(text):
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize("asker,least", [("limit", 0), ("explain", 1)])
def test_a_callers_size(asker, least):
    assert sizes.asked_size(asker, "2 GiB", least) == 2 << 30
    assert sizes.asked_size(asker, least, least) == least
    for size in (least - 1, 1 << 60, 1e30, None, "many", "4 XiB"):
        with pytest.raises(ValueError) as refused:
            sizes.asked_size(asker, size, least)
        assert str(refused.value).startswith(
            f"stratalloc.{asker}: size={size!r}: ")


def test_sizes_for_people():
    assert format_size(0) == "0 B"
    assert format_size(1 << 26) == "64 MiB"
    assert format_size(3 << 29) == "1.50 GiB"
    assert format_size(-2048) == "-2 KiB"


def test_defaults():
    config = Config()
    assert config.tiering is True
    assert config.telemetry == "counters"
    assert (config.gpu_offload_threshold, config.gpu_emergency_threshold,
            config.gpu_reload_threshold, config.cpu_offload_threshold) == (
                .85, .95, .70, .90)
    assert config.host_budget is None
    assert config.eager_offload is False


def test_thresholds_act_from_the_start_if_one_is_set():
    assert Config(gpu_offload_threshold=.85).eager_offload is True
    assert Config.parse("gpu_reload_threshold:.6").eager_offload is True
    assert Config(cpu_offload_threshold=.5).eager_offload is False
    assert Config(gpu_offload_threshold=.8, eager_offload=False
                  ).eager_offload is False
    assert Config().replace(gpu_emergency_threshold=.9).eager_offload is True
    assert Config().replace(host_budget=1).eager_offload is False
    assert Config().replace(host_budget=1).resolved().eager_offload is False
    assert Config(eager_offload="on").eager_offload is True


def test_every_field_is_a_key(tmp_path):
    text = (f"tiering:off,gpu_limit:1GiB,host_budget:32MiB,disk_budget:0,"
            f"disk_dir:{tmp_path},disk_codec:zstd,gpu_offload_threshold:.8,"
            "gpu_emergency_threshold:0.9,gpu_reload_threshold:0.5,"
            "cpu_offload_threshold:0.75,eager_offload:off,telemetry:events,"
            "live:on")
    config = Config.parse(text)
    assert set(config.to_dict()) == set(Config.keys())
    assert config == Config(
        tiering=False, gpu_limit=1 << 30, host_budget=32 << 20, disk_budget=0,
        disk_dir=str(tmp_path), disk_codec="zstd", gpu_offload_threshold=.8,
        gpu_emergency_threshold=.9, gpu_reload_threshold=.5,
        cpu_offload_threshold=.75, eager_offload=False, telemetry="events",
        live=True)


def test_the_core_obeys_every_setting():
    with open("python_shim/core/config.cc", encoding="utf-8") as file:
        obeyed = re.findall(r'^    {"(\w+)",', file.read(), re.M)
    told = set(Config.keys()) - set(Config.of_python())
    assert sorted(obeyed) == sorted(told | {"host_budget_is_given"})


def test_a_program_in_c_plus_plus_has_the_same_thresholds():
    """It tells the core nothing: the options' own defaults hold."""
    config, found = Config(), {}
    for path in ("allocator/requests/device_parts.h", "tiering/engine/engine.h",
                 "tiering/engine/lower_copies.h"):
        with open(path, encoding="utf-8") as file:
            found.update(re.findall(
                r"\bdouble (\w+_threshold) = ([\d.]+);", file.read()))
    assert {name: float(value) for name, value in found.items()} == {
        "gpu_offload_threshold": config.gpu_offload_threshold,
        "gpu_reload_threshold": config.gpu_reload_threshold,
        "emergency_threshold": config.gpu_emergency_threshold,
        "cpu_offload_threshold": config.cpu_offload_threshold}


def test_what_the_core_is_told():
    config = Config(gpu_limit="1MiB", host_budget=3, disk_budget=4,
                    disk_dir=os.curdir, gpu_offload_threshold=.8,
                    telemetry="events", tiering="off")
    assert dict(config.to_text()) == {
        "tiering": "off", "gpu_limit": "1048576", "host_budget": "3",
        "disk_budget": "4", "disk_dir": ".", "disk_codec": "off",
        "gpu_offload_threshold": "0.8",
        "gpu_emergency_threshold": "0.95", "gpu_reload_threshold": "0.7",
        "eager_offload": "on", "cpu_offload_threshold": "0.9",
        "telemetry": "events", "live": "off", "oom_dir": "",
        "oom_max_dumps": "8", "oom_max_bytes": "1073741824",
        "oom_max_seconds": "20"}


@pytest.mark.parametrize("value, says", [
    ("-1", "not a whole number from 0"), ("3MiB", "not a whole number from 0"),
    ("\u0663", "not a whole number from 0"), (-1, "not between 0"),
    (1 << 31, "not between 0"), (1.5, "not a whole number"),
    (True, "not a whole number")])
def test_a_count_that_is_none(value, says):
    with pytest.raises(ValueError, match=f"oom_max_dumps.*{says}"):
        Config(oom_max_dumps=value)


def test_where_bundles_go_must_be_there(tmp_path):
    assert Config(oom_dir=str(tmp_path), oom_max_dumps="3").oom_max_dumps == 3
    with pytest.raises(ValueError, match="'oom_dir': no such directory"):
        Config(oom_dir=str(tmp_path / "nowhere"))


def test_the_core_can_read_what_it_is_told(tmp_path):
    # No text of Unicode: a folder's name is bytes.
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    _core.configure(Config(host_budget=3, disk_budget=4,
                           disk_dir=os.fsdecode(folder)), True)


def test_what_the_core_does_not_know_is_an_error():
    class Other(Config):
        def to_text(self):
            yield "host_budjet", "1"

    with pytest.raises(ValueError, match="host_budjet"):
        _core.configure(Other(), False)


def test_what_was_changed_is_told_with_its_meaning():
    assert not list(Config().changed())
    changed = list(Config(gpu_limit="1GiB", gpu_reload_threshold=.5).changed())
    assert [(key, value) for key, value, _ in changed] == [
        ("gpu_limit", "1073741824"), ("gpu_reload_threshold", "0.5"),
        ("eager_offload", "on")]
    assert changed[0][2] == "bytes per device; 0 = the card's memory"


def test_the_readme_has_the_table_of_the_settings():
    with open("python_shim/README.md", encoding="utf-8") as file:
        text = file.read().partition("### Settings")[2].partition("###")[0]
    table = text[text.index("| key |"):].strip() + "\n"
    assert table == settings.table(), (
        "the table comes from Config: put this one there\n" + settings.table())


def test_environment():
    assert Config.from_env({}) == Config()
    assert Config.from_env({"STRATALLOC_CONF": " , "}) == Config()
    config = Config.from_env({"STRATALLOC_CONF": "host_budget: 1GiB ,"})
    assert config.host_budget == 1 << 30


@pytest.mark.parametrize("text,key,value,nearest", [
    ("host_budjet:32MiB", "host_budjet", "32MiB", "host_budget"),
    ("GPU_LIMIT:1GiB", "GPU_LIMIT", "1GiB", "gpu_limit"),
    ("teiring:on", "teiring", "on", "tiering"),
])
def test_unknown_key(text, key, value, nearest):
    with pytest.raises(ValueError) as caught:
        Config.parse(text)
    message = str(caught.value)
    assert key in message and value in message
    assert f"did you mean {nearest!r}" in message


@pytest.mark.parametrize("key", ["foo", "x", "verbose"])
def test_key_like_no_setting_suggests_none(key):
    with pytest.raises(ValueError, match="unknown key") as caught:
        Config.parse(f"{key}:1")
    assert "did you mean" not in str(caught.value)
    assert "Valid keys: tiering, gpu_limit" in str(caught.value)


@pytest.mark.parametrize("text,key,value", [
    ("host_budget:lots", "host_budget", "lots"),
    ("tiering:maybe", "tiering", "maybe"),
    ("telemetry:loud", "telemetry", "loud"),
    ("disk_codec:zip", "disk_codec", "zip"),
    ("gpu_offload_threshold:85", "gpu_offload_threshold", "85"),
    ("gpu_offload_threshold:0.99", "gpu_offload_threshold", "0.99"),
    ("cpu_offload_threshold:nan", "cpu_offload_threshold", "nan"),
    ("disk_dir:/no/such/place", "disk_dir", "/no/such/place"),
    ("gpu_limit:-1", "gpu_limit", "-1"),
    ("tiering:on,tiering:off", "tiering", "off"),
])
def test_bad_value(text, key, value):
    with pytest.raises(ValueError) as caught:
        Config.parse(text)
    assert repr(key) in str(caught.value)
    assert value in str(caught.value)


@pytest.mark.parametrize("text", ["tiering", "tiering:", "tiering=on"])
def test_malformed(text):
    with pytest.raises(ValueError, match="tiering"):
        Config.parse(text)


def test_replace():
    config = Config().replace(host_budget="8GiB", tiering="off")
    assert config.host_budget == 8 << 30 and config.tiering is False
    with pytest.raises(ValueError, match="did you mean 'host_budget'"):
        Config().replace(hostbudget=1)
    with pytest.raises(ValueError, match="'disk_budget'"):
        Config(disk_budget=True)


def test_frozen():
    with pytest.raises(AttributeError):
        Config().tiering = False


def test_resolved(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    config = Config().resolved()
    assert config.disk_dir == str(tmp_path)
    free = os.statvfs(tmp_path)
    assert 0 < config.disk_budget <= min(64 << 30,
                                         free.f_bavail * free.f_frsize)
    assert config.host_budget > 0
    assert Config(host_budget=0, disk_budget=0).resolved().host_budget == 0


def _fake_machine(tmp_path, available_kib, cgroup, files):
    proc, root = tmp_path / "proc", tmp_path / "sys/fs/cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(
        f"MemTotal: 1 kB\nMemAvailable:   {available_kib} kB\n")
    (proc / "self" / "cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return settings.default_host_budget(tmp_path)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


def test_host_budget_is_half_of_available(tmp_path):
    assert _fake_machine(tmp_path, 1 << 20, "0::/\n", {}) == 1 << 29


def test_host_budget_sees_a_limit_on_an_ancestor(tmp_path):
    budget = _fake_machine(
        tmp_path, 1 << 20, "0::/job/step\n", {
            "job/memory.max": str(300 << 20) + "\n",
            "job/memory.current": str(100 << 20) + "\n",
            "job/step/memory.max": "max\n",
            "job/step/memory.current": str(50 << 20) + "\n"})
    assert budget == 100 << 20


def test_host_budget_in_a_version_1_group(tmp_path):
    budget = _fake_machine(
        tmp_path, 1 << 20, "7:cpu:/x\n5:memory:/x\n", {
            "memory/x/memory.limit_in_bytes": str(64 << 20),
            "memory/x/memory.usage_in_bytes": str(32 << 20)})
    assert budget == 16 << 20


def test_page_cache_that_can_go_counts_as_available(tmp_path):
    budget = _fake_machine(
        tmp_path, 1 << 20, "0::/job\n", {
            "job/memory.max": str(300 << 20),
            "job/memory.current": str(250 << 20),
            "job/memory.stat": f"anon 7\ninactive_file {150 << 20}\n"})
    assert budget == 100 << 20


def test_a_machine_that_does_not_say_needs_a_host_budget(tmp_path):
    with pytest.raises(RuntimeError, match="MemAvailable.*; set host_budget"):
        settings.default_host_budget(tmp_path)


@pytest.mark.parametrize("said, processes", [
    ("8", 8), ("1", 1), ("0", 1), ("", 1), (" 2 ", 2), ("many", 1),
    ("-4", 1), ("\u0662", 1)])
def test_the_processes_of_a_machine_share_the_default(
        tmp_path, monkeypatch, said, processes):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", said)
    assert _fake_machine(tmp_path, 1 << 20, "0::/\n", {}) == (
        (1 << 29) // processes)


def test_a_host_budget_that_was_given_is_each_processs(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setattr(_core, "host_memory", lambda root: (1 << 20, 1 << 20))
    # Neither divided nor cut to what is available.
    for given in (Config(host_budget="3GiB"),
                  Config.parse("host_budget:3GiB"),
                  Config().replace(host_budget=3 << 30)):
        assert given.resolved().host_budget == 3 << 30
    assert Config(host_budget=0).resolved().host_budget == 0
    assert Config().resolved().host_budget <= (1 << 19) // 8


def test_the_memory_of_the_machine_or_its_container(tmp_path):
    assert _core.host_memory(tmp_path) == (None, None)
    _fake_machine(tmp_path, 1 << 10, "", {})
    assert _core.host_memory(tmp_path) == (1 << 10, 1 << 20)
    total, available = _core.host_memory()
    assert 0 < available <= total


# Nobody, not even root, can make a file there.
_NO_FILES = "/proc"


def test_a_disk_dir_that_cannot_hold_a_file_is_a_mistake(
        tmp_path, monkeypatch):
    assert Config(disk_dir=str(tmp_path)).resolved().disk_budget > 0
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="'disk_dir'.*cannot hold the spill"):
        Config(disk_dir=_NO_FILES).resolved()
    # Nobody needs one.
    assert Config(disk_dir=_NO_FILES, disk_budget=0).resolved()
    assert Config(disk_dir=_NO_FILES, tiering=False).resolved()
    # The directory that nobody chose is nobody's mistake.
    monkeypatch.setenv("TMPDIR", _NO_FILES)
    assert Config().resolved().disk_budget == 0
    with pytest.raises(ValueError, match=f"'disk_budget': {_NO_FILES} cannot"):
        Config(disk_budget="1GiB").resolved()


def _remarks(**asked):
    config = Config(**asked)
    return list(config.remarks(config.resolved(), memory=64 << 30))


@pytest.mark.parametrize("asked", [
    {}, {"host_budget": "2MiB"}, {"host_budget": "64GiB"}, {"host_budget": 0},
    {"disk_budget": 0}, {"disk_budget": "3MiB"},
    {"tiering": False, "host_budget": 0, "disk_budget": 0},
    {"tiering": False, "host_budget": "65GiB"},
])
def test_no_remark_on_what_works(asked, monkeypatch):
    monkeypatch.setattr(settings, "default_host_budget", lambda: 1 << 30)
    monkeypatch.setattr(settings, "default_disk_budget", lambda where: 1 << 30)
    assert _remarks(**asked) == []


_SMALL = "is less than what leaves the device at once"


@pytest.mark.parametrize("asked,remark", [
    ({"host_budget": "1MiB"},
     f"host_budget of 1 MiB {_SMALL} (2 MiB): what is evicted goes to the "
     "disk"),
    ({"disk_budget": "2MiB"},
     f"disk_budget of 2 MiB {_SMALL} (2 MiB and a header of 4 KiB): what is "
     "evicted stays in host memory"),
    ({"host_budget": 0, "disk_budget": 0},
     "host_budget is 0 and disk_budget is 0: nothing can be evicted"),
    ({"host_budget": "1MiB", "disk_budget": 0},
     f"host_budget of 1 MiB {_SMALL} (2 MiB) and disk_budget is 0: nothing "
     "can be evicted"),
    ({"host_budget": "65GiB"},
     "host_budget of 65 GiB is more than the 64 GiB of memory that this "
     "machine or its container has: so much can never be evicted to it, and "
     "the kernel may end processes that try"),
])
def test_a_remark_on_what_does_not(asked, remark, monkeypatch):
    monkeypatch.setattr(settings, "default_host_budget", lambda: 1 << 30)
    monkeypatch.setattr(settings, "default_disk_budget", lambda where: 1 << 30)
    assert _remarks(**asked) == [remark]


def test_the_processes_of_a_machine_share_its_memory(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert _remarks(host_budget="8GiB") == []
    (remark,) = _remarks(host_budget="9GiB")
    assert "9 GiB for each of 8 processes is more than" in remark


@pytest.mark.parametrize("free,budget", [
    (1 << 40, 64 << 30), (1 << 30, 1 << 29), (257 << 20, 257 << 19),
    (256 << 20, 0), (12 << 20, 0), (0, 0)])
def test_a_disk_that_nobody_asked_for_makes_no_handle_smaller(
        free, budget, monkeypatch, tmp_path):
    monkeypatch.setattr(settings.shutil, "disk_usage",
                        lambda where: types.SimpleNamespace(free=free))
    assert settings.default_disk_budget(tmp_path) == budget


def test_a_remark_names_no_setting_that_nobody_made(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "default_host_budget", lambda: 1 << 20)
    assert _remarks(disk_budget=0) == [
        "this machine has no memory to spare and disk_budget is 0: nothing "
        "can be evicted"]
    monkeypatch.setattr(settings, "default_host_budget", lambda: 1 << 30)
    monkeypatch.setattr(settings, "default_disk_budget", lambda where: 1 << 20)
    assert _remarks() == [], "nobody asked for a disk"
    assert _remarks(disk_dir=str(tmp_path)) == [
        f"{tmp_path} has no room for a spill file: what is evicted stays in "
        "host memory"]
    monkeypatch.setenv("TMPDIR", _NO_FILES)
    assert _remarks(host_budget=0) == [
        f"host_budget is 0 and {_NO_FILES} has no room for a spill file: "
        "nothing can be evicted"]
    monkeypatch.setattr(settings, "default_host_budget", lambda: 1 << 20)
    (remark,) = _remarks()
    assert "_budget" not in remark, remark


def test_import_is_silent_and_lazy():
    code = ("import sys, stratalloc\n"
            "assert 'torch' not in sys.modules and 'rich' not in sys.modules\n"
            "stratalloc.Config(host_budget='1MiB')\n"
            "assert 'torch' not in sys.modules\n"
            "for name in stratalloc.__all__:\n"
            "    assert name in dir(stratalloc), name\n"
            "for name in ('compat', 'settings', 'simulate', 'telemetry'):\n"
            "    assert name in dir(stratalloc), name\n"
            "    assert 'stratalloc.' + name not in sys.modules or name == "
            "'settings'\n"
            "    module = getattr(stratalloc, name)\n"
            "    assert module is sys.modules['stratalloc.' + name], name\n"
            "stratalloc.compat.install()\n"
            "assert 'torch' not in sys.modules and 'rich' not in sys.modules\n"
            "try: stratalloc.serve_matrices\n"
            "except AttributeError: pass\n"
            "else: raise SystemExit('there is no such name')\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True,
                          text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
