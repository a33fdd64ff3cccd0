# SPDX-License-Identifier: Apache-2.0
"""The tree of holders: sums, order, repeated layers, names."""

import random

from stratalloc import _tree


def _lines(*rows, **how):
    return list(_tree.lines(rows, **how))


def _names(lines):
    return [line[:44].rstrip() for line in lines[1:]]


def test_a_line_is_the_sum_of_what_is_below_it():
    lines = _lines(("net.a", "parameter", 300), ("net.b", "parameter", 100),
                   ("net", "activation", 50), ("(no scope)", "unknown", 7))
    assert _names(lines) == ["total", "  net", "    a", "    b", "  (no scope)"]
    assert lines[1].split()[1:3] == ["457", "B"]
    assert lines[2].split()[1:3] == ["450", "B"]
    assert "parameter 400 B, activation 50 B" in lines[2]


def test_repeated_layers_are_one_line():
    rows = [(f"net.layers.{i}.{part}", "parameter", 10)
            for i in range(32) for part in ("q", "k")]
    names = _names(_lines(*rows, ("net.layers.40.q", "parameter", 1)))
    assert names == ["total", "  net", "    layers", "      0–31 × 32",
                     "        k", "        q", "      40", "        q"]


def test_layers_that_differ_are_apart():
    rows = [(f"layers.{i}", "parameter", 10) for i in range(4)]
    names = _names(_lines(*rows, ("layers.2", "gradient", 1)))
    assert names == ["total", "  layers", "    0–1 × 2", "    2", "    3"]


def test_ten_follows_nine():
    rows = [(f"layers.{i}", "parameter", 1) for i in range(12)]
    assert _names(_lines(*rows))[-1] == "    0–11 × 12"


def test_what_is_cut_off_is_counted_and_the_largest_stay():
    rows = [(f"a.{name}", "parameter", size)
            for name, size in (("x", 5), ("y", 50), ("z", 1))]
    lines = _lines(*rows, most=4)
    assert _names(lines[:-1]) == ["total", "  a", "    y"]
    assert lines[-1].startswith("and 2 smaller")


def test_depth_is_levels_below_the_total():
    rows = [("a.b.c", "parameter", 1)]
    assert _names(_lines(*rows, depth=1)) == ["total", "  a"]


def test_any_name_is_one_line():
    lines = _lines(("evil\nname\x1b[31m", "parameter", 1),
                   ("x" * 100 + ".end", "parameter", 1), ("..", "buffer", 1))
    assert all("\n" not in line and "\x1b" not in line for line in lines)
    long = next(line for line in lines if "…" in line)
    assert long.index("1 B") > 44


def test_sums_hold_for_any_tree():
    rng = random.Random(7)
    for _ in range(50):
        rows = [(".".join(rng.choice("abc0123") for _ in range(rng.randint(1, 4))),
                 rng.choice(("parameter", "gradient")), rng.randint(0, 99),
                 rng.randint(0, 99)) for _ in range(rng.randint(1, 40))]
        root = _tree.build(rows, 2)
        assert root.total == [sum(row[2] for row in rows),
                              sum(row[3] for row in rows)]
        todo = [root]
        while todo:
            node = todo.pop()
            children = [child for _, child in _tree.folded(node)]
            for column in (0, 1):
                own = sum(sizes[column] for sizes in node.own.values())
                below = sum(child.total[column] for child in children)
                assert node.total[column] == own + below
            todo += children
