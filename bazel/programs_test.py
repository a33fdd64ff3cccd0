# SPDX-License-Identifier: Apache-2.0
"""A program in a fork behaves as one of an interpreter of its own."""

import os
import signal
import subprocess
import sys

import pytest

from bazel import programs

_BOTH = pytest.mark.parametrize("fresh", [False, True])


def test_program_of_a_test_has_imported_torch_already():
    done = programs.run("-c", "import os, sys; print('torch' in sys.modules, "
                        "os.getppid(), 'pytest' == sys.argv[0])")
    assert done.stdout.split() == ["True", str(os.getppid()), "False"]


@pytest.mark.parametrize("text, code, out, errors", [
    ("print('out'); import sys; print('err', file=sys.stderr)",
     0, "out\n", "err\n"),
    ("raise SystemExit(7)", 7, "", ""),
    ("raise SystemExit('what failed')", 1, "", "what failed\n"),
    ("import atexit; atexit.register(print, 'late'); raise SystemExit", 0,
     "late\n", ""),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
     -signal.SIGKILL, "", ""),
    ("class Late:\n    def __del__(self): print('finalized')\nkept = Late()",
     0, "finalized\n", ""),
    ("import threading\nthreading.Timer(.01, print, ['thread']).start()", 0,
     "thread\n", ""),
    ("print(__name__, __import__('sys').modules['__main__'].__dict__ is "
     "globals(), input)", 0, "__main__ True <built-in function input>\n", ""),
    ("import sys; print(sys.stdin.read() == '', sys.path[0] == '')", 0,
     "True True\n", ""),
    ("import ctypes; libc = ctypes.CDLL(None)\nlibc.__cxa_atexit(libc.puts, "
     "b'handler', None); libc.printf(b'buffered '); raise SystemExit(3)", 3,
     "buffered handler\n", ""),
])
@_BOTH
def test_ending_and_output_are_the_interpreter_s(fresh, text, code, out,
                                                 errors):
    done = programs.run("-c", text, fresh=fresh)
    assert (done.returncode, done.stdout, done.stderr) == (code, out, errors)


@_BOTH
def test_exception_of_program_is_its_traceback(fresh):
    done = programs.run("-c", "def fail():\n    1 / 0\nfail()", fresh=fresh)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Traceback (most recent call last):",
        '  File "<string>", line 3, in <module>',
        '  File "<string>", line 2, in fail',
        "ZeroDivisionError: division by zero"]


@_BOTH
def test_file_of_program_has_arguments_folder_and_environment(fresh, tmp_path):
    (tmp_path / "beside.py").write_text("value = 5\n")
    path = tmp_path / "program.py"
    path.write_text("import os, sys, beside\n"
                    "print(sys.argv[1:], beside.value, __file__, os.getcwd(), "
                    "os.environ['SAID'], len(os.environ))\n")
    done = programs.run(path, "a", "3", cwd=tmp_path, fresh=fresh,
                        env={"SAID": "so", "LC_CTYPE": "C.UTF-8"})
    assert done.stdout.split() == [
        "['a',", "'3']", "5", str(path), str(tmp_path), "so", "2"], done
    assert "beside" not in sys.modules and "SAID" not in os.environ


@_BOTH
def test_module_of_program_is_run(fresh, tmp_path):
    (tmp_path / "named.py").write_text(
        "import sys; print(__name__, sys.argv); sys.exit(3)\n")
    done = programs.run("-m", "named", "x", cwd=tmp_path, fresh=fresh)
    assert done.returncode == 3
    assert done.stdout == f"__main__ ['{tmp_path}/named.py', 'x']\n"


@_BOTH
def test_merged_lines_of_print_are_in_their_order(fresh):
    done = programs.run(
        "-c", "import sys\nfor i in range(4):\n"
        "    print(i, file=sys.stderr if i % 2 else sys.stdout)", merged=True,
        fresh=fresh)
    assert done.stdout == "0\n1\n2\n3\n"


def test_merged_output_is_in_the_order_of_writing():
    done = programs.run("-c", "import os\nfor i in range(4):\n"
                        "    os.write(1 + i % 2, b'%d' % i)", merged=True)
    assert (done.stdout, done.stderr or "") == ("0123", "")


@_BOTH
def test_program_that_does_not_end_is_killed(fresh):
    with pytest.raises(subprocess.TimeoutExpired):
        programs.run("-c", "while True: pass", timeout=.5, fresh=fresh)
    assert programs.run("-c", "print(1)").stdout == "1\n"


def test_environment_that_import_of_torch_reads_starts_an_interpreter():
    done = programs.run("-c", "import sys; print('torch' in sys.modules)",
                        env={**os.environ, "STRATALLOC": "0"})
    assert done.stdout == "False\n", done.stderr


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
