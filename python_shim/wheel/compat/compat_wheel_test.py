# SPDX-License-Identifier: Apache-2.0
"""stratalloc-compat in environments that pip makes: what it adds, whom it
yields to, what a start of Python costs, and what is left when it goes."""

import glob
import pathlib
import shutil
import subprocess
import sys

import pytest

_NAMES = ("gpu_optimizer", "memlord", "memory_management")
_HERE = "python_shim/wheel/compat/"


def _wheel(pattern):
    path, = glob.glob(pattern)
    return path


class _Environment:
    """A venv with both wheels, and a stand-in for each compat module."""

    def __init__(self, folder):
        self.folder = folder
        self.home = folder / "home"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", folder / "venv"],
            check=True, timeout=120)
        self.python = folder / "venv" / "bin" / "python"
        self.site, = (folder / "venv" / "lib").glob("python*/site-packages")
        self.before = self.files()
        self.pip("install", _wheel("python_shim/wheel/*.whl"))
        self.without = self.files()
        self.started = self.run("import sys; print(*sys.modules)")
        self.pip("install", _wheel(_HERE + "*.whl"))
        for name in _NAMES:
            package(self.site / "stratalloc" / "compat", name, "ours")

    def files(self):
        return {str(path.relative_to(self.site))
                for path in self.site.rglob("*")
                if "__pycache__" not in path.parts}

    def pip(self, verb, *arguments):
        flags = ["--no-index", "--no-deps", "--no-compile"]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--python", self.python,
             "--disable-pip-version-check", "--no-cache-dir", verb,
             *(flags if verb == "install" else ["-y"]), *arguments],
            text=True, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr

    def run(self, program, **environment):
        done = subprocess.run(
            [self.python, "-c", program], text=True, capture_output=True,
            timeout=60, cwd=self.folder,
            env={"HOME": str(self.home), **environment})
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout.strip()

    def whose(self):
        return self.run("import gpu_optimizer, memlord, memory_management\n"
                        "print(gpu_optimizer.WHOSE, memlord.WHOSE, "
                        "memory_management.WHOSE)")


def package(folder, name, whose):
    """Makes a package; where one was, it is instead of that."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "__init__.py").write_text(f"WHOSE = {whose!r}\n")


@pytest.fixture(name="made", scope="module")
def _made(tmp_path_factory):
    return _Environment(tmp_path_factory.mktemp("compat"))


def test_it_adds_two_files_and_its_own_description(made):
    added = {name for name in made.files() - made.without
             if not name.startswith("stratalloc/")}
    assert {name for name in added if ".dist-info" not in name} == {
        "_stratalloc_names.py", "stratalloc_compat.pth"}
    metadata, = made.site.glob("stratalloc_compat-*.dist-info/METADATA")
    version = metadata.parent.name.split("-")[1].removesuffix(".dist")
    assert f"Requires-Dist: stratalloc=={version}" in metadata.read_text()
    assert pathlib.Path(made.site / "_stratalloc_names.py").read_bytes() == (
        pathlib.Path(made.site / "stratalloc" / "compat" / "_names.py")
        .read_bytes())


def test_a_start_imports_one_file_more(made):
    started = made.run("import sys; print(*sys.modules)")
    assert set(started.split()) - set(made.started.split()) == {
        "_stratalloc_names"}


def test_the_names_are_ours_without_a_call(made):
    assert made.whose() == "ours ours ours"
    assert made.run(
        "import memlord, stratalloc.compat as compat\n"
        "import stratalloc.compat.memlord as ours, sys\n"
        "assert ours is memlord\n"
        "finders = len(sys.meta_path)\n"
        "said = compat.install()\n"  # two copies of the file, one finder
        "print(len(sys.meta_path) - finders, said['memlord'])"
    ) == "0 stratalloc.compat.memlord"


def test_a_regular_original_keeps_its_name(made):
    package(made.site, "memlord", "theirs")
    try:
        assert made.whose() == "ours theirs ours"
    finally:
        shutil.rmtree(made.site / "memlord")


def test_an_original_in_the_users_own_site_keeps_its_name(made):
    config = made.folder / "venv" / "pyvenv.cfg"
    was = config.read_text()
    config.write_text(was.replace("include-system-site-packages = false",
                                  "include-system-site-packages = true"))
    try:
        users = pathlib.Path(made.run(
            "import site; print(site.getusersitepackages())"))
        assert made.home in users.parents
        package(users, "memory_management", "theirs")
        assert made.whose() == "ours ours theirs"
    finally:
        config.write_text(was)


@pytest.mark.parametrize("way", ("a path", "a finder before", "after"))
def test_an_editable_original_keeps_its_name(made, way):
    """As setuptools installs them: a path in a .pth file, or a finder that a
    .pth line appends, whichever of the two lines comes first."""
    source = made.folder / "sources"
    package(source, "gpu_optimizer", "theirs")
    name = "zz_editable" if way == "after" else "__editable__"
    line = made.site / (name + ".pth")
    finder = made.site / "editable_finder_of_them.py"
    if way == "a path":
        line.write_text(f"{source}\n")
    else:
        line.write_text("import editable_finder_of_them\n")
        finder.write_text(f"""import sys
from importlib.util import spec_from_file_location
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "gpu_optimizer":
            folder = {str(source / "gpu_optimizer")!r}
            return spec_from_file_location(
                name, folder + "/__init__.py",
                submodule_search_locations=[folder])
sys.meta_path.append(Finder)
""")
    try:
        assert made.whose() == "theirs ours ours"
    finally:
        line.unlink()
        if finder.exists():
            finder.unlink()


def test_uninstalled_it_is_gone(made):
    made.run("import memlord")
    made.pip("uninstall", "stratalloc-compat")
    for name in _NAMES:
        assert made.run("import importlib.util as u\n"
                        f"print(u.find_spec({name!r}))") == "None"
    left = {name for name in made.files() - made.without
            if not name.startswith("stratalloc/")}
    assert left == set()
    assert made.run("import sys; print(*sys.modules)") == made.started
    made.pip("uninstall", "stratalloc")
    assert made.files() == made.before
