# SPDX-License-Identifier: Apache-2.0
"""Sites of programs: levels, short names, bounds, and their ends."""

import textwrap

import pytest

from bazel import programs

PROGRAM = textwrap.dedent("""
    from stratalloc import simulate
    simulate.load("64MiB")
    import stratalloc, torch
    {enable}
    torch.cuda.init()
""")


def program(tmp_path, body, enable="stratalloc.enable(host_budget=0, "
            "disk_budget=0, telemetry='callsites')"):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(enable=enable) + textwrap.dedent(body))
    done = programs.run(path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("level", ["off", "counters", "events"])
def test_below_the_level_the_answers_say_so(tmp_path, level):
    out = program(tmp_path, """
        a = stratalloc.mark()
        kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        row, = stratalloc.holders(by="site").rows
        change, = stratalloc.diff(a, by="site").rows
        assert (row.bytes, change.bytes, change.count) == (1 << 20, 1 << 20, 1)
        assert row.name == change.name == stratalloc.leaks(on="call").sites
        print(row.name)
    """, f"stratalloc.enable(host_budget=0, disk_budget=0, "
         f"telemetry={level!r})")
    assert out == ('(sites are not recorded: enable(telemetry="callsites") '
                   'records them)\n')


def test_files_below_where_the_program_began_are_short(tmp_path):
    assert program(tmp_path, """
        kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        print(stratalloc.holders(by="site").rows[0].name)
    """) == "program.py:8 <module>\n"


@pytest.mark.parametrize("lines", [
    200_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_million_lines_are_bounded(tmp_path, lines):
    out = program(tmp_path, f"""
        lines = {lines}
        """ + """
        import resource
        from stratalloc._ownership import sites as _sites
        names = {"torch": torch}
        source = "torch.empty(65536, dtype=torch.uint8, device='cuda')"
        code = compile(source, "generated.py", "eval")
        def run(first, last):
            for line in range(first, last):
                eval(code.replace(co_firstlineno=line), names)
        run(1, 20000)  # all names that there will be
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run(20000, lines)
        kept = eval(code.replace(co_firstlineno=lines), names)
        early = eval(code.replace(co_firstlineno=7), names)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 8 << 10, grown  # KiB
        found = {row.name: row.bytes
                 for row in stratalloc.holders(by="site").rows}
        assert found == {"(other sites)": 65536,
                         "generated.py:7 <module>": 65536}, found
        assert _sites.look(0).refused > lines - 100000
    """)
    assert out == ""


def test_what_allocates_at_exit_has_no_frame(tmp_path):
    assert program(tmp_path, """
        def last():
            kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
            print(stratalloc.holders(by="site").rows[0].name)
    """, "import atexit; atexit.register(lambda: last()); "
         "stratalloc.enable(host_budget=0, disk_budget=0, "
         "telemetry='callsites')") == "(no Python frame)\n"


def test_a_forked_child_ends(tmp_path):
    """Whoever waited for the GIL to find a line is not in the child."""
    program(tmp_path, """
        import os, sys, threading
        done = threading.Event()
        def run():
            while not done.is_set():
                torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            child = os.fork()
            if child == 0:
                sys.exit(0)  # with atexit's functions
            assert os.waitpid(child, 0)[1] == 0
        done.set()
        for thread in threads:
            thread.join()
    """)
