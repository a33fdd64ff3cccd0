# SPDX-License-Identifier: Apache-2.0
"""Public names as type checkers and editors see them: tables, signatures, types."""

import ast
import dataclasses
import inspect
import os
import subprocess
import sys
import typing
from collections.abc import Mapping

import jedi
import pytest

import stratalloc
from stratalloc import _setting_kinds, _signatures, settings
from stratalloc._native import argument_types, core, stack
from stratalloc._native.started import Started
from stratalloc._rendering.result import Answer, Shown

_SITE = os.path.dirname(os.path.dirname(stratalloc.__file__))
_WAYS_IN = ("enable", "allocator", "library")


def _parsed(module):
    with open(module.__file__, encoding="utf-8") as file:
        return ast.parse(file.read())


def _for_type_checkers():
    """name -> module of what `if TYPE_CHECKING` of the package imports."""
    branch, = (node for node in _parsed(stratalloc).body
               if isinstance(node, ast.If))
    found = {}
    for node in branch.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                assert alias.asname == alias.name, "else it is not re-exported"
                found[alias.name] = node.module
    return found


def test_names_for_type_checkers_are_those_loaded_at_run_time():
    loaded = {name: f"stratalloc.{module}"
              for name, module in stratalloc._NAMES.items()
              if name != "__version__"}
    modules = dict.fromkeys(stratalloc._MODULES, "stratalloc")
    assert _for_type_checkers() == {**loaded, **modules}


def test_every_public_name_exists():
    for name in stratalloc.__all__:
        assert getattr(stratalloc, name) is not None


# Type of a parameter, by what its values are read as.
_TYPES = {
    _setting_kinds.SWITCH: "bool", _setting_kinds.SIZE: "int | str",
    _setting_kinds.FRACTION: "float", _setting_kinds.COUNT: "int",
    _setting_kinds.DIRECTORY: "str | os.PathLike[str]",
    _setting_kinds.LEVEL: "TelemetryLevel", _setting_kinds.CODEC: "Codec"}


def _expected():
    """[(name, type, default)] that a signature has for Config's fields."""
    for field in dataclasses.fields(stratalloc.Config):
        about = settings._about(field)
        default = field.default if about.unset is None else about.unset
        yield (field.name, _TYPES[about.kind]
               + (" | None" if default is None else ""), default)


def _declared():
    """name -> ast.arguments of each signature that has the settings."""
    found = {node.name: node.args for node in _parsed(_signatures).body
             if isinstance(node, ast.FunctionDef) and node.name in _WAYS_IN}
    found["Config"], = (
        node.args for node in ast.walk(_parsed(settings))
        if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    return found


@pytest.mark.parametrize("name", [*_WAYS_IN, "Config"])
def test_signature_has_the_settings_of_config(name):
    arguments = _declared()[name]
    keywords = arguments.kwonlyargs or arguments.args[1:]
    defaults = arguments.kw_defaults or arguments.defaults
    values = [eval(ast.unparse(one), {}) for one in defaults]
    assert [(one.arg, ast.unparse(one.annotation), value)
            for one, value in zip(keywords, values, strict=True)
            ] == list(_expected())


@pytest.mark.parametrize("name", _WAYS_IN)
def test_signature_at_run_time_has_the_settings(name):
    parameters = inspect.signature(getattr(stratalloc, name)).parameters
    assert tuple(parameters) == ("config", *stratalloc.Config.keys())
    assert parameters["tiering"].annotation is bool  # no text, as help() shows


def test_docstring_of_enable_explains_every_setting():
    arguments = inspect.getdoc(stratalloc.enable).split(
        "Args:\n")[1].split("\n\n")[0]
    explained = [line.split(":")[0].strip() for line in arguments.splitlines()
                 if not line.startswith("   ")]
    assert explained == ["config", *stratalloc.Config.keys()]


def test_settings_left_out_are_not_passed_on():
    @_signatures._calls(lambda config=None, **given: (config, given))
    def declared(config=None, *, tiering=True, gpu_limit=0):
        """Never runs."""

    assert declared() == (None, {})
    assert declared("config", gpu_limit=0) == ("config", {"gpu_limit": 0})


def test_literal_types_are_the_values_that_are_read():
    assert typing.get_args(argument_types.TelemetryLevel) == (
        core.TELEMETRY_LEVELS)
    assert typing.get_args(argument_types.Codec) == core.DISK_CODECS
    assert typing.get_args(argument_types.Category) == (
        *stack.CATEGORIES, *stack.OLDER)


def _functions():
    """(name, function) of public functions and of public classes' methods."""
    for name in stratalloc.__all__:
        value = getattr(stratalloc, name)
        if not inspect.isclass(value):
            yield name, value
            continue
        for cls in value.__mro__:
            if not cls.__module__.startswith("stratalloc."):
                continue
            for attribute, member in vars(cls).items():
                member = getattr(member, "fget", member)
                member = getattr(member, "__func__", member)
                if inspect.isfunction(member) and not attribute.startswith(
                        "_") and member.__module__.startswith("stratalloc."):
                    yield f"{name}.{attribute}", member


def test_every_public_function_is_annotated():
    bare = []
    for name, function in _functions():
        signature = inspect.signature(function)
        bare += [f"{name}({one.name})" for one in signature.parameters.values()
                 if one.annotation is one.empty and one.name not in (
                     "self", "cls")]
        if signature.return_annotation is signature.empty:
            bare.append(f"{name} -> ?")
    assert bare == []


def _classes(base):
    """name -> public class that is a `base`."""
    return {name: value for name in stratalloc.__all__
            if inspect.isclass(value := getattr(stratalloc, name))
            and issubclass(value, base)}


@pytest.mark.parametrize("name", _classes(Shown))
def test_result_has_to_dict_to_pandas_and_text(name):
    cls = _classes(Shown)[name]
    assert issubclass(cls, Answer)
    assert issubclass(cls, Mapping) != (name in ("Limit", "Trace"))
    assert list(inspect.signature(cls.text).parameters) == [
        "self", "depth", "all"]
    for function in (cls.to_dict, cls.to_pandas):
        assert list(inspect.signature(function).parameters) == ["self"]
    assert cls.to_dict is not Answer.to_dict


@pytest.mark.parametrize("title, base", [
    ("Results", Shown), ("Started and ended", Started)])
def test_table_of_the_readme_has_every_public_class(title, base):
    with open("python_shim/README.md", encoding="utf-8") as file:
        section = file.read().split(f"### {title}\n")[1].split("\n###")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert {row.split("|")[2].split("`")[1] for row in rows} == set(
        _classes(base))


@pytest.fixture(autouse=True)
def _no_cache_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr(jedi.settings, "cache_directory", str(tmp_path))


def _script(code):
    """`code` as an editor has it, with the cursor at its end."""
    project = jedi.Project(_SITE, added_sys_path=[_SITE])
    environment = jedi.create_environment(sys.executable, safe=False)
    lines = code.split("\n")
    return (jedi.Script(code, project=project, environment=environment),
            len(lines), len(lines[-1]))


def _completions(code):
    script, line, column = _script(code)
    return {one.name for one in script.complete(line, column)}


def test_completion_of_the_package_has_every_public_name():
    found = _completions("import stratalloc\nstratalloc.")
    assert {"enable", "holders", "peak", "stats", "evict"} <= found
    assert {*stratalloc.__all__, *stratalloc._MODULES} <= found


@pytest.mark.parametrize("call, names", [
    ("stats()", {"to_dict", "text"}),
    ("holders()", {"rows", "total", "to_pandas"}),
    ("limit(1, scope='a')", {"scope", "bytes"})])
def test_completion_of_a_result_has_its_attributes(call, names):
    assert names <= _completions(f"import stratalloc\nstratalloc.{call}.")


def test_signature_help_of_enable_has_every_setting():
    script, line, column = _script("import stratalloc\nstratalloc.enable(")
    signature, = script.get_signatures(line, column)
    assert [one.name for one in signature.params] == [
        "config", *stratalloc.Config.keys()]
    assert "gpu_offload_threshold: float=0.85" in signature.to_string()


# torch's own annotations take mypy a minute.
_TORCH = """
from typing import Any
class device:
    def __init__(self, kind: str, index: int = 0) -> None: ...
def __getattr__(name: str) -> Any: ...
"""


def _mypy(tmp_path, *lines):
    """(exit code, output) of mypy for a program of these lines."""
    (tmp_path / "torch.pyi").write_text(_TORCH)
    program, configuration = tmp_path / "program.py", tmp_path / "mypy.ini"
    program.write_text("\n".join(("import stratalloc", *lines, "")))
    configuration.write_text("[mypy]\nno_site_packages = True\n"
                             "[mypy-stratalloc.*]\nfollow_imports = silent\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file",
         configuration, "--cache-dir", tmp_path / "cache", program],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": _SITE}, text=True,
        capture_output=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_mypy_accepts_a_correct_program(tmp_path):
    code, said = _mypy(
        tmp_path,
        'enabled: bool = stratalloc.enable(host_budget="8GiB", tiering=True)',
        'same: bool = stratalloc.enable(stratalloc.Config(gpu_limit="1GiB"))',
        'found: stratalloc.Holders = stratalloc.holders(by="category")',
        "size: int = found.rows[0].bytes + stratalloc.evict()",
        "text: str = stratalloc.peak().text(depth=2, all=True)",
        'with stratalloc.limit("2 GiB", scope="kv cache") as limit:',
        "    limited: int = limit.bytes",
        '@stratalloc.scope("preprocess", category="input")',
        "def preprocess(batch: list[int]) -> int:",
        "    return len(batch)",
        "count: int = preprocess([1])",
        "try:",
        "    stratalloc.explain('2 GiB')",
        "except stratalloc.NotEnabledError:",
        "    pass",
        "import torch",
        "stratalloc.peak(device=torch.device('cuda', 0))")
    assert code == 0, said


def test_mypy_rejects_misspelt_names_and_wrong_types(tmp_path):
    """One run: each line is one mistake."""
    mistakes = {
        "stratalloc.enabel()": 'no attribute "enabel"',
        "x: int = stratalloc.stats()": "Incompatible types in assignment",
        'stratalloc.enable(host_budjet="8GiB")': '"host_budjet"',
        "stratalloc.enable(tiering=3)": "incompatible type",
        'stratalloc.holders(by="modul")': "incompatible type",
        "stratalloc.holders(device=[1])": "incompatible type",
        'stratalloc.limit(1, "x", device=b"")': "incompatible type",
        "stratalloc.peak().rows[0].byte": 'no attribute "byte"'}
    code, said = _mypy(tmp_path, *mistakes)
    assert code == 1, said
    for number, (line, error) in enumerate(mistakes.items(), 2):
        assert any(one.startswith(f"program.py:{number}:") and error in one
                   for one in said.splitlines()), (line, said)
