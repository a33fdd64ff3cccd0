# SPDX-License-Identifier: Apache-2.0
"""The dashboard and the alerts that the package has: promtool takes every
expression, the alerts fire when they should and else do not, and no metric is
named that nobody tells."""

import json
import pathlib
import re
import shutil
import subprocess
import sysconfig

import pytest

import stratalloc
from stratalloc.telemetry.exports import exposition, families

_DATA = pathlib.Path(stratalloc.__file__).parent / "data" / "metrics"
_ALERTS = _DATA / "alerts.yml"
_DASHBOARD = json.loads((_DATA / "dashboard.json").read_text())
_EXPRESSIONS = [(panel["title"], target["expr"])
                for panel in _DASHBOARD["panels"] for target in panel["targets"]]
# What Grafana puts in the place of its variables.
_VARIABLES = {"$__rate_interval": "5m", "$__range": "1h", "$job": ".*",
              "$instance": ".*", "$device": ".*"}


def _promtool(folder, *arguments, fails=False):
    tool = shutil.which("promtool") or shutil.which(
        "promtool", path=sysconfig.get_path("scripts"))
    assert tool, "there is no promtool here; run ./dev setup"
    done = subprocess.run([tool, *map(str, arguments)], capture_output=True,
                          text=True, check=False, timeout=120, cwd=folder)
    assert (done.returncode != 0) == fails, (done.stdout + done.stderr)[-3000:]
    return done.stdout + done.stderr


def _known():
    return {exposition.PREFIX + name + "_total" * (one.kind == "counter")
            for name, one in families.NAMES.items()
            if one.of != families.RECORDED}


def test_the_readme_has_every_name_as_the_table_has_it():
    text = (pathlib.Path(__file__).parents[4] / "telemetry"
            / "README.md").read_text()
    rows = [tuple(map(str.strip, line.strip("|").split("|")))
            for line in text.partition("| name, behind")[2].splitlines()[2:]]
    rows = rows[:rows.index(("",))]
    assert rows == [(f"`{name}{'_total' * (one.kind == 'counter')}`", one.kind,
                     ", ".join(one.labels), one.of, one.help)
                    for name, one in families.NAMES.items()]


def _named(expression):
    return set(re.findall(r"\bstratalloc_\w+", expression))


def test_every_metric_of_the_dashboard_and_the_alerts_is_told():
    named = set().union(*(_named(one) for _, one in _EXPRESSIONS))
    for variable in _DASHBOARD["templating"]["list"]:
        named |= _named(str(variable["query"]))
    alerts = _named(_ALERTS.read_text())
    assert named and alerts and named | alerts <= _known()


def test_labels_of_the_dashboard_are_those_of_the_metrics():
    """A selector of a label that a metric has not finds nothing."""
    for title, expression in _EXPRESSIONS:
        for name, selector in re.findall(r"\bstratalloc_(\w+)\{([^}]*)\}",
                                         expression):
            labels = set(re.findall(r"(\w+)=", selector)) - {"job", "instance"}
            of = families.NAMES[name.removesuffix("_total")].labels
            assert labels <= set(of), (title, name)


def test_grafana_can_import_the_dashboard():
    assert _DASHBOARD["uid"] and _DASHBOARD["schemaVersion"] >= 36
    assert "__inputs" not in _DASHBOARD and "id" not in _DASHBOARD
    panels = _DASHBOARD["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    for one in panels:
        assert one["title"] and one["description"] and one["targets"]
        assert one["datasource"]["uid"] == "${datasource}"
        place = one["gridPos"]
        assert place["x"] + place["w"] <= 24
    # No panel lies on another.
    cells = [(x, y) for one in panels for p in [one["gridPos"]]
             for x in range(p["x"], p["x"] + p["w"])
             for y in range(p["y"], p["y"] + p["h"])]
    assert len(set(cells)) == len(cells)
    variables = {one["name"]: one for one in _DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    used = set(re.findall(r"\$(\w+)", " ".join(one for _, one in _EXPRESSIONS)))
    assert used - {"__rate_interval", "__range"} <= set(variables)


def _as_rules(expressions):
    rules = []
    for i, expression in enumerate(expressions):
        for variable, value in _VARIABLES.items():
            expression = expression.replace(variable, value)
        rules.append({"record": f"dashboard:expression:{i}",
                      "expr": expression})
    return json.dumps({"groups": [{"name": "dashboard", "rules": rules}]})


def test_promtool_takes_every_expression_of_the_dashboard(tmp_path):
    path = tmp_path / "dashboard.yml"  # JSON is YAML
    path.write_text(_as_rules([one for _, one in _EXPRESSIONS]))
    assert f"{len(_EXPRESSIONS)} rules found" in _promtool(
        tmp_path, "check", "rules", "dashboard.yml")
    path.write_text(_as_rules([_EXPRESSIONS[0][1] + ")"]))
    assert "parse error" in _promtool(tmp_path, "check", "rules",
                                      "dashboard.yml", fails=True)


def test_promtool_takes_the_alerts(tmp_path):
    assert "SUCCESS" in _promtool(tmp_path, "check", "rules", _ALERTS)


_GIB = 1 << 30


def _series(name, values, **labels):
    labels = {"job": "train", "instance": "a:1", "rank": "0", **labels}
    said = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"stratalloc_{name}{{{said}}}", "values": values}


def _device(name, values, **labels):
    return _series(name, values, device="0", **labels)


def _memory(allocated, limit=80 * _GIB, reserved=None, stranded=.01, host=None):
    """Of one process with one device."""
    found = [_device("memory_allocated_bytes", allocated, tier="device"),
             _device("memory_limit_bytes", f"{limit}x200", tier="device"),
             _device("memory_reserved_bytes", f"{reserved or limit // 2}x200",
                     tier="device"),
             _device("memory_fragmentation_ratio", f"{stranded}x200",
                     kind="stranded")]
    if host is not None:
        found += [_device("memory_allocated_bytes", f"{10 * _GIB}x200",
                          tier="host"),
                  _series("tier_limit_bytes", f"{host}x200", tier="host")]
    return found


_HALF = f"{40 * _GIB}x200"
_FULL = f"{79 * _GIB}x200"
# (what is seen, series, minute, the alert, does it fire)
_CASES = [
    ("half full", _memory(_HALF), 20, "StratallocLittleHeadroom", False),
    ("full, nowhere to evict to", _memory(_FULL), 20,
     "StratallocLittleHeadroom", True),
    ("full, the host has room", _memory(_FULL, host=64 * _GIB), 20,
     "StratallocLittleHeadroom", False),
    ("full, and so is the host", _memory(_FULL, host=10 * _GIB), 20,
     "StratallocLittleHeadroom", True),
    ("full for a moment", _memory(_FULL), 3, "StratallocLittleHeadroom", False),
    ("waits half of the time", [_device("stall_seconds_total", "0+30x200")],
     30, "StratallocStalls", True),
    ("waits now and then", [_device("stall_seconds_total", "0+3x200")],
     30, "StratallocStalls", False),
    ("stranded and full", _memory(_HALF, reserved=79 * _GIB, stranded=.4), 30,
     "StratallocFragmentation", True),
    ("stranded with room", _memory(_HALF, stranded=.4), 30,
     "StratallocFragmentation", False),
    ("full, nothing stranded", _memory(_HALF, reserved=79 * _GIB), 30,
     "StratallocFragmentation", False),
    ("refused", [_device("ooms_total", "0x10 1x190")], 13,
     "StratallocOutOfMemory", True),
    ("refused long ago", [_device("ooms_total", "0x10 1x190")], 30,
     "StratallocOutOfMemory", False),
    ("never refused", [_device("ooms_total", "0x200")], 30,
     "StratallocOutOfMemory", False),
    ("grows", _memory(f"{10 * _GIB}+{_GIB // 16}x200"), 120,
     "StratallocGrowth", True),
    ("grew once", _memory(f"{10 * _GIB}x20 {30 * _GIB}x180"), 120,
     "StratallocGrowth", False),
    ("grew once, just now", _memory(f"{10 * _GIB}x100 {30 * _GIB}x100"), 122,
     "StratallocGrowth", False),
    ("goes up and down", _memory(" ".join(
        f"{(10 + minute % 5 * 8) * _GIB}" for minute in range(200))), 120,
     "StratallocGrowth", False),
]


@pytest.mark.parametrize("fire", [True, False])
def test_alerts_fire_when_they_should(fire, tmp_path):
    """Each case is a program of its own: nothing of another one is seen."""
    names = dict.fromkeys(re.findall(r"alert: (\w+)", _ALERTS.read_text()))
    assert {case[3] for case in _CASES if case[4] == fire} == set(names)
    folder = tmp_path / "rules"
    folder.mkdir()
    shutil.copy(_ALERTS, folder)
    tests = []
    for what, series, minute, alert, fires in _CASES:
        if fires == fire:
            tests.append({
                "name": what, "interval": "1m", "input_series": series,
                "promql_expr_test": [{
                    "expr": f'count(ALERTS{{alertname="{alert}",'
                            'alertstate="firing"}) or vector(0)',
                    "eval_time": f"{minute}m",
                    "exp_samples": [{"labels": "{}", "value": int(fire)}]}]})
    (folder / "tests.yml").write_text(json.dumps(
        {"rule_files": ["alerts.yml"], "evaluation_interval": "30s",
         "tests": tests}))
    assert "SUCCESS" in _promtool(folder, "test", "rules", "tests.yml")
