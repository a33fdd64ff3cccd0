# SPDX-License-Identifier: Apache-2.0
"""The command line: exit codes, and `run` itself.

`run --allocator native` without --simulate touches neither torch nor a shared
object, so the program's view (argv, path, exit code) is tested that way, in an
interpreter of its own.
"""

import json
import os
import subprocess
import sys

import pytest

from bazel import programs


def stratalloc(*arguments, **environment):
    """The ended command, on a machine without a GPU."""
    return programs.run("-m", "stratalloc", *map(str, arguments), env={
        **os.environ, "CUDA_VISIBLE_DEVICES": "", **environment})


def doctor(*arguments, **environment):
    return stratalloc("doctor", *arguments, **environment)


def run(*arguments):
    return programs.run("-m", "stratalloc", "run", "--allocator", "native",
                        *map(str, arguments), fresh=True)


def script(tmp_path, text, name="script.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def unread(*arguments, streams=("stdout",), **environment):
    """(exit code, what the other stream got) where the reader of `streams` has
    left."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "stratalloc", *map(str, arguments)],
        **{name: writer if name in streams else subprocess.PIPE
           for name in ("stdout", "stderr")}, text=True, check=False,
        env={**os.environ, **environment})
    os.close(writer)
    return done.returncode, (done.stdout or "") + (done.stderr or "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [
    ("--version",), ("--help",), ("run", "--help"), ("summary", "--help"),
    ("doctor", "--json", "-")])
def test_command_without_a_reader_ends_quietly_with_141(arguments, unbuffered):
    assert unread(*arguments, PYTHONUNBUFFERED=unbuffered) == (141, "")


@pytest.mark.parametrize("arguments, code", [
    ((), 2), (("nonsense",), 2), (("run", "/no/such/script.py"), 2),
    (("peak", "/no/such/file"), 141)])
def test_refusal_without_a_reader_of_stderr_has_an_exit_code(arguments, code):
    assert unread(*arguments, streams=("stderr",)) == (code, "")


_HOLDS = ("import torch\nkept = torch.ones(1 << 20, device='cuda')\n"
          "print('printed')\n")


def test_run_whose_report_has_no_reader_keeps_the_programs_code(tmp_path):
    path = script(tmp_path, _HOLDS + "raise SystemExit(7)")
    options = ("run", "--simulate", "16MiB", "--report", "--json",
               tmp_path / "out.json", path)
    assert unread(*options, streams=("stderr",)) == (7, "printed\n")
    assert json.loads((tmp_path / "out.json").read_text())["exit_code"] == 7
    code, said = unread(*options, PYTHONUNBUFFERED="")
    assert code == 7 and "BrokenPipe" not in said and "total" in said


def test_output_of_a_program_without_a_reader_is_141(tmp_path):
    path = script(tmp_path, "print('printed')")
    options = ("run", "--allocator", "native", path)
    assert unread(*options, PYTHONUNBUFFERED="") == (141, "")
    code, said = unread(*options, PYTHONUNBUFFERED="1")
    assert code == 1 and "BrokenPipeError" in said, "as python has it"
    assert said.count("Traceback") == 1 and "Exception ignored" not in said


def test_broken_pipe_of_the_program_itself_is_raised(tmp_path):
    path = script(tmp_path, "import os\nreader, writer = os.pipe()\n"
                  "os.close(reader)\nos.write(writer, b'x')\n")
    done = run(path)
    assert done.returncode == 1 and "BrokenPipeError" in done.stderr


def test_estimate_without_a_reader_ends_quietly_with_141(tmp_path):
    code, said = unread("estimate", "--card", "t4", script(tmp_path, _HOLDS))
    assert code == 141 and "BrokenPipe" not in said, said


def test_without_a_command_prints_help():
    done = stratalloc()
    assert done.returncode == 2 and "usage: stratalloc" in done.stderr


def test_help_documents_exit_codes():
    done = stratalloc("--help")
    assert done.returncode == 0 and "exit codes: 0 fine" in done.stdout
    for command in ("run", "demo", "bench", "doctor", "oom"):
        assert command in done.stdout


def test_a_folder_is_no_script(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "is a directory" in line and str(tmp_path) in line
    script(tmp_path, "print('as python does')", "__main__.py")
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (0, "as python does\n")


def test_version():
    from importlib import metadata

    import stratalloc as package
    from stratalloc._native import core as _core

    done = stratalloc("--version")
    assert (done.returncode, done.stdout, done.stderr) == (
        0, f"stratalloc {package.__version__}\n", "")
    assert package.__version__ == metadata.version("stratalloc")
    assert package.__version__ == _core.version()


def test_bad_conf_names_key_and_value():
    done = stratalloc("run", "--conf", "host_budjet:7MiB", "-m", "this")
    assert "host_budjet" in done.stderr and "7MiB" in done.stderr
    done = stratalloc("run", "-m", "this", STRATALLOC_CONF="telemetry:loud")
    assert done.returncode == 2 and "loud" in done.stderr


def test_script_sees_its_own_arguments(tmp_path):
    path = script(tmp_path, "import sys, json\n"
                  "print(json.dumps([sys.argv, sys.path[0], __name__, "
                  "__file__]))\n")
    done = run(path, "-m", "--json", "x", "--", "-y")
    assert done.returncode == 0, done.stderr
    argv, first, name, file = json.loads(done.stdout)
    assert argv == [str(path), "-m", "--json", "x", "--", "-y"]
    assert first == str(tmp_path)
    assert (name, file) == ("__main__", str(path))


def test_module_sees_its_own_arguments(tmp_path):
    script(tmp_path, "import sys\nprint(sys.argv[1:], __name__, __package__)",
           "mod.py")
    done = subprocess.run(
        [sys.executable, "-m", "stratalloc", "run", "--allocator", "native",
         "-m", "mod", "a", "--json"],
        capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout == "['a', '--json'] __main__ \n", done.stderr


@pytest.mark.parametrize("text,code,stderr", [
    ("pass", 0, ""),
    ("raise SystemExit(0)", 0, ""),
    ("raise SystemExit(7)", 7, ""),
    ("raise SystemExit", 0, ""),
    ("raise SystemExit('gone')", 1, "gone\n"),
    ("import os; os._exit(5)", 5, ""),
])
def test_exit_codes_pass_through(tmp_path, text, code, stderr):
    done = run(script(tmp_path, text))
    assert (done.returncode, done.stderr) == (code, stderr)


def test_exceptions_pass_through(tmp_path):
    done = run(script(tmp_path, "def f():\n  raise KeyError('here')\nf()\n"))
    assert done.returncode == 1
    assert "KeyError: 'here'" in done.stderr and "script.py" in done.stderr


_RAISES = [
    "def f():\n  raise KeyError('here')\nf()\n",
    "def f():\n  1 / 0\ntry:\n  f()\nexcept ZeroDivisionError as e:\n"
    "  raise ValueError('there') from e\n",
    "x = (\n",
    "raise KeyboardInterrupt\n",
    "import sys, traceback\n"
    "sys.excepthook = lambda kind, value, found: print(\n"
    "    kind, traceback.extract_tb(found), file=sys.stderr)\n"
    "[][1]\n",
]


@pytest.mark.parametrize("text", _RAISES)
def test_an_exception_looks_as_under_python(tmp_path, text):
    """Frame for frame, and nothing of ours before or after."""
    path = script(tmp_path, text)
    theirs = subprocess.run([sys.executable, path], capture_output=True,
                            text=True, check=False)
    ours = run(path)
    assert (ours.stderr, ours.returncode) == (theirs.stderr, theirs.returncode)


def test_a_script_is_named_whole_as_under_python(tmp_path):
    """The program may change its folder and still be shown."""
    script(tmp_path, "import os, sys\nos.chdir('/')\nprint(sys.argv[0])\n"
           "print(__file__)\n[][1]\n")
    told = []
    for command in ((), ("-m", "stratalloc", "run", "--allocator", "native")):
        done = subprocess.run([sys.executable, *command, "script.py"],
                              capture_output=True, text=True, check=False,
                              cwd=tmp_path)
        told.append((done.returncode, done.stdout, done.stderr))
    assert told[0] == told[1]


def test_an_exception_of_a_module_begins_there(tmp_path):
    script(tmp_path, "[][1]\n", "mod.py")
    done = subprocess.run(
        [sys.executable, "-m", "stratalloc", "run", "--allocator", "native",
         "-m", "mod"], capture_output=True, text=True, check=False,
        cwd=tmp_path)
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert lines[0] == "Traceback (most recent call last):"
    assert "mod.py\", line 1, in <module>" in lines[1], done.stderr


def test_signals_pass_through(tmp_path):
    done = run(script(tmp_path,
                      "import os, signal; os.kill(os.getpid(), 9)"))
    assert done.returncode == -9


def test_main_is_alive_at_exit(tmp_path):
    done = run(script(tmp_path, "import atexit\nvalue = 'kept'\n"
                      "def last():\n    print(value)\n"
                      "atexit.register(last)\n"))
    assert done.stdout == "kept\n"


def test_json_is_written_even_if_the_script_raises(tmp_path):
    out = tmp_path / "report.json"
    done = run("--json", out, script(tmp_path, "raise ValueError('x')"))
    assert done.returncode == 1
    values = json.loads(out.read_text())
    assert values["exit_code"] == 1 and values["enabled"] is False
    done = run("--json", "-", script(tmp_path, "raise SystemExit(3)"))
    assert done.returncode == 3
    assert json.loads(done.stdout)["exit_code"] == 3


@pytest.mark.parametrize("target", [
    "/no/such/folder/report.json", ".", "script.py/report.json",
])
def test_a_bad_json_target_is_said_before_the_job(tmp_path, target):
    marker = tmp_path / "ran"
    path = script(tmp_path, f"open({str(marker)!r}, 'w')")
    done = run("--json", tmp_path / target, path)
    assert done.returncode == 2 and not marker.exists(), done.stderr
    (line,) = done.stderr.splitlines()
    assert f"--json {tmp_path / target}" in line


def test_a_disk_dir_without_files_is_said_before_the_job(tmp_path):
    marker = tmp_path / "ran"
    path = script(tmp_path, f"open({str(marker)!r}, 'w')")
    done = stratalloc("run", "--conf", "disk_dir:/proc", path)
    assert done.returncode == 2 and not marker.exists(), done.stderr
    (line,) = done.stderr.splitlines()
    assert "'disk_dir'" in line and "cannot hold" in line
    assert run("--allocator", "native", "--conf", "disk_dir:/proc",
               path).returncode == 0, "nobody needs it"


def test_the_trial_leaves_the_target_alone(tmp_path):
    out = tmp_path / "report.json"
    out.write_text("of yesterday")
    path = script(tmp_path, "import os; os._exit(5)")
    assert run("--json", out, path).returncode == 5
    assert out.read_text() == "of yesterday"
    assert sorted(os.listdir(tmp_path)) == ["report.json", "script.py"]


def test_json_on_stdout_is_alone_there(tmp_path):
    path = script(tmp_path, "import atexit, os, sys\n"
                  "print('printed')\nos.system('echo from a child')\n"
                  "os.write(1, b'written\\n')\n"
                  "atexit.register(print, 'at the end')\n")
    done = run("--json", "-", path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["exit_code"] == 0
    assert sorted(done.stderr.splitlines()) == [
        "at the end", "from a child", "printed", "written"]


def test_json_may_go_to_a_pipe(tmp_path):
    reader, writer = os.pipe()
    done = subprocess.run(
        [sys.executable, "-m", "stratalloc", "run", "--allocator", "native",
         "--json", f"/dev/fd/{writer}", script(tmp_path, "print('mine')")],
        capture_output=True, text=True, check=False, pass_fds=(writer,))
    os.close(writer)
    with os.fdopen(reader) as file:
        assert done.stdout == "mine\n", done.stderr
        assert json.load(file)["exit_code"] == 0


def test_json_stays_where_the_user_was(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    path = script(tmp_path, "import os; os.chdir('elsewhere')")
    done = subprocess.run(
        [sys.executable, "-m", "stratalloc", "run", "--allocator", "native",
         "--json", "report.json", path], capture_output=True, text=True,
        check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "report.json").read_text())


def test_results_without_a_place_are_printed(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = script(tmp_path, f"import os; os.rmdir({str(folder)!r})")
    done = run("--json", folder / "report.json", path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    line, text = done.stderr.split("\n", 1)
    assert str(folder) in line and json.loads(text)["exit_code"] == 0


def test_doctor():
    done = doctor("--json", "-")
    values = json.loads(done.stdout)
    assert done.returncode == (0 if values["ok"] else 3)
    names = [finding["name"] for finding in values["findings"]]
    assert {"core", "torch", "io_uring", "spill file",
            "sharing"} <= set(names)


def test_doctor_reports_bad_settings():
    done = doctor(STRATALLOC_CONF="host_budget:none")
    assert done.returncode == 3 and "host_budget" in done.stdout


def _spill(tmp_path, conf):
    """doctor's finding on the spill file, with its exit code."""
    return _finding("spill file", f"disk_dir:{tmp_path},{conf}")


def _finding(name, conf, **environment):
    done = doctor("--json", "-", STRATALLOC_CONF=conf, **environment)
    return _found(name, done)


def _found(name, done):
    (found,) = [finding for finding in json.loads(done.stdout)["findings"]
                if finding["name"] == name]
    return found["state"], found["detail"], done.returncode


def test_doctor_asks_whether_the_disk_budget_fits(tmp_path):
    state, detail, _ = _spill(tmp_path, "disk_budget:1MiB")
    assert state in ("ok", "note")  # there are file systems without O_DIRECT
    state, detail, code = _spill(tmp_path, "disk_budget:4096TiB")
    assert (state, code) == ("problem", 3)
    assert "free" in detail and "disk_budget" in detail, detail
    assert str(tmp_path) in detail and "disk_dir" in detail
    assert os.listdir(tmp_path) == []


def test_doctor_knows_the_limit_of_a_file(tmp_path):
    limited = ("import resource, runpy\nresource.setrlimit("
               "resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
               "runpy.run_module('stratalloc', run_name='__main__')")
    done = programs.run("-c", limited, "doctor", "--json", "-", env={
        **os.environ, "CUDA_VISIBLE_DEVICES": "", "STRATALLOC_CONF":
        f"disk_dir:{tmp_path},disk_budget:64MiB"}, fresh=True)
    state, detail, code = _found("spill file", done)
    assert (state, code) == ("problem", 3)
    assert "ulimit -f" in detail and "64 MiB" in detail, detail


def test_doctor_says_what_was_set_and_what_it_means():
    done = doctor("--json", "-", STRATALLOC_CONF="gpu_limit:1GiB")
    said = [finding["detail"] for finding in json.loads(done.stdout)["findings"]
            if finding["name"] == "settings"]
    assert "gpu_limit:1073741824 (bytes per device; 0 = the card's memory)" \
        in said, said
    assert not any("reload_threshold" in detail for detail in said), said


def test_doctor_wants_a_file_only_if_there_is_a_disk_budget():
    state, detail, code = _finding(
        "settings", "disk_dir:/proc,disk_budget:1MiB")
    assert (state, code) == ("problem", 3) and "/proc" in detail
    state, detail, _ = _spill("/proc", "disk_budget:0")
    assert state == "ok", detail
    state, detail, _ = _finding("spill file", "", TMPDIR="/proc")
    assert state == "note" and "/proc" in detail and "budget" not in detail


def test_doctor_says_why_a_device_has_no_tiering():
    done = programs.run(
        "-m", "stratalloc", "run", "--allocator", "native", "--simulate",
        "64MiB", "--devices", "2", "-m", "stratalloc", "doctor", "--json", "-",
        env={**os.environ, "CUDASIM_VMM": "on,off"})
    (found,) = [finding for finding in json.loads(done.stdout)["findings"]
                if finding["name"] == "tiering"]
    assert found["state"] == "note", done.stderr
    assert found["detail"].startswith(
        "nothing can be evicted from device 1: "), found
    assert "no virtual memory management" in found["detail"]


def test_doctor_says_what_enable_would():
    done = doctor(STRATALLOC_CONF="host_budget:0,disk_budget:0")
    assert done.stdout.count("nothing can be evicted") == 1, done.stdout


@pytest.mark.parametrize("text, place", [
    ("9400", ("127.0.0.1", 9400)), ("0", ("127.0.0.1", 0)),
    ("0.0.0.0:9400", ("0.0.0.0", 9400)), ("[::1]:65535", ("::1", 65535)),
    ("localhost:0", ("localhost", 0))])
def test_metrics_are_served_at_an_address_and_a_port(text, place):
    from stratalloc.cli import command_line as cli

    args = cli._parsed(["run", "--metrics", text, "x.py"])
    assert args.metrics == place


def test_metrics_at_no_place_name_the_form_that_is_wanted():
    done = stratalloc("run", "--metrics", "::1:9400", "-m", "this")
    assert "'::1:9400' is not [ADDRESS:]PORT; give a port" in done.stderr
    assert "[::1]:9400" in done.stderr.splitlines()[-1]
