# SPDX-License-Identifier: Apache-2.0
"""The command line: usage errors, exit codes, and `run` itself.

`run --allocator native` without --simulate touches neither torch nor a shared
object, so the program's view (argv, path, exit code) is tested that way.
"""

import json
import os
import subprocess
import sys

import pytest


def stratalloc(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "stratalloc", *map(str, arguments)],
        capture_output=True, text=True, check=False,
        env={**os.environ, **environment})


def run(*arguments, **environment):
    return stratalloc("run", "--allocator", "native", *arguments,
                      **environment)


def script(tmp_path, text, name="script.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_without_a_command_prints_help():
    done = stratalloc()
    assert done.returncode == 2 and "usage: stratalloc" in done.stderr


def test_help_documents_exit_codes():
    done = stratalloc("--help")
    assert done.returncode == 0 and "exit codes: 0 fine" in done.stdout
    for command in ("run", "demo", "bench", "doctor"):
        assert command in done.stdout


@pytest.mark.parametrize("arguments", [
    ("nonsense",), ("run",), ("demo", "--device", "tpu"),
    ("run", "/no/such/script.py"), ("demo", "--gpu-memory", "lots"),
    ("run", "--simulate", "64MB", "-m", "this"),
    ("run", "--simulate", "1KiB", "-m", "this"),
    ("run", "--simulate", "8MiB", "--card", "h2000", "-m", "this"),
    ("run", "--simulate", "8MiB", "--profile", "no/file", "-m", "this"),
    ("run", "--simulate", "card", "-m", "this"),
    ("run", "--card", "h200", "-m", "this"),
    ("demo", "--card", "h2000"),
    ("demo", "--device", "cuda", "--card", "h200"),
    ("run", "--numbers", "off", "-m", "this"),
    ("run", "--simulate", "64MiB", "--numbers", "some", "-m", "this"),
    ("run", "--conf", "host_budjet:1MiB", "-m", "this"),
])
def test_usage_errors(arguments):
    done = stratalloc(*arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


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


def test_doctor():
    done = stratalloc("doctor", "--json", "-")
    values = json.loads(done.stdout)
    assert done.returncode == (0 if values["ok"] else 3)
    names = [finding["name"] for finding in values["findings"]]
    assert {"core", "torch", "io_uring", "spill file"} <= set(names)


def test_doctor_reports_bad_settings():
    done = stratalloc("doctor", STRATALLOC_CONF="host_budget:none")
    assert done.returncode == 3 and "host_budget" in done.stdout
