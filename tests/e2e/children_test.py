# SPDX-License-Identifier: Apache-2.0
"""A program in a fork of the test process is as one in a new interpreter."""

import signal
import subprocess
import sys

import pytest

from tests.e2e import children
from tests.e2e import running

pytestmark = pytest.mark.skipif(
    not running.SIMULATED, reason="a real GPU has a new interpreter each")

# Each with what ends it: exit code, both texts, the order in them.
_PROGRAMS = {
    "ends": "print('out')",
    "fails": "import sys\nprint('err', file=sys.stderr)\nraise ValueError('no')",
    "exits": "import sys\nsys.exit(7)",
    "exits_with_text": "raise SystemExit('a text')",
    "dies": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    "warns": "import warnings\nwarnings.warn('old')",
    "at_exit": ("import atexit\natexit.register(print, 'last')\n"
                "class Kept:\n"
                "    def __del__(self):\n"
                "        print('collected', flush=True)\n"
                "kept = Kept()\nprint('first')"),
    "thread": ("import threading\n"
               "threading.Thread(target=lambda: print('joined')).start()"),
    "arguments": "import sys\nprint(sys.argv[1:], __name__, __file__[-9:])",
    "files": ("import os\nprint([os.readlink('/proc/self/fd/' + name) for name "
              "in os.listdir('/proc/self/fd') if int(name) > 2 and "
              "os.path.lexists('/proc/self/fd/' + name) and 'deleted' in "
              "os.readlink('/proc/self/fd/' + name)])"),
    "environment": ("import os\nprint(os.environ.get('GIVEN'), "
                    "os.environ.get('STRATALLOC_CONF'))"),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_program_ends_as_in_a_new_interpreter(name, tmp_path, monkeypatch):
    monkeypatch.setenv("STRATALLOC_CONF", "removed:1")
    path = tmp_path / "script.py"
    path.write_text(_PROGRAMS[name])
    forked, fresh = (running.python(path, "a", "b", GIVEN="1", fresh=fresh)
                     for fresh in (False, True))
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        fresh.returncode, fresh.stdout, fresh.stderr)
    assert forked.args[0] != sys.executable == fresh.args[0]


def test_module_and_text_run_as_main():
    text = "import sys; print(sys.argv, __name__)"
    for arguments in (("-c", text, "a"), ("-m", "this"),
                      ("-m", "tests.e2e.small.run", "--help")):
        forked, fresh = (running.python(*arguments, fresh=fresh, COLUMNS="80")
                         for fresh in (False, True))
        assert (forked.returncode, forked.stdout, forked.stderr) == (
            fresh.returncode, fresh.stdout, fresh.stderr)


def test_each_program_has_a_device_of_its_own(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import torch\nprint(torch.cuda.mem_get_info()[1] >> 20)")
    for memory in (32, 96):
        done = running.on_device(f"{memory}MiB", path)
        assert running.must_work(done) == f"{memory}\n"


def test_program_that_does_not_end_is_killed():
    with pytest.raises(subprocess.TimeoutExpired):
        children.run(["-c", "import signal\nsignal.pause()"],
                     running.environment(), 0)


def test_setting_of_the_import_needs_a_new_interpreter():
    assert children.possible(running.environment())
    assert not children.possible(running.environment(STRATALLOC="1"))
    done = running.python("-c", "import os; os.abort()")
    assert done.returncode == -signal.SIGABRT
