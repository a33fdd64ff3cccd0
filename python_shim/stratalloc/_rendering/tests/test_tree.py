# SPDX-License-Identifier: Apache-2.0
"""The tree of holders: sums, order, repeated layers, names, and widths."""

import random

from rich.cells import cell_len

from stratalloc._rendering import table as _table
from stratalloc._rendering import tree as _tree


def _table_of(*rows, columns=_tree.BYTES, **how):
    return _tree.Tree(rows, columns).table(**how)


def _names(table):
    return ["  " * row.level + row.name for row in table.rows]


def test_a_line_is_the_sum_of_what_is_below_it():
    table = _table_of(
        ("net.a", "parameter", 300), ("net.b", "parameter", 100),
        ("net", "activation", 50), ("(no scope)", "unknown", 7))
    assert _names(table) == ["total", "  net", "    a", "    b", "  (no scope)"]
    assert [row.cells for row in table.rows] == [
        ("457 B",), ("450 B",), ("300 B",), ("100 B",), ("7 B",)]
    assert table.rows[1].notes == ("parameter 400 B", "activation 50 B")


def test_repeated_layers_are_one_line():
    rows = [(f"net.layers.{i}.{part}", "parameter", 10)
            for i in range(32) for part in ("q", "k")]
    names = _names(_table_of(*rows, ("net.layers.40.q", "parameter", 1)))
    assert names == ["total", "  net.layers", "    0–31 × 32", "      k",
                     "      q", "    40.q"]
    assert _names(_table_of(*rows)) == [
        "total", "  net.layers.0–31 × 32", "    k", "    q"]


def test_a_layer_that_is_unlike_its_neighbours_is_apart():
    rows = [(f"layers.{i}", "parameter", 10) for i in range(8)]
    table = _table_of(*rows, ("layers.4", "gradient", 1))
    assert _names(table) == ["total", "  layers", "    0–3 × 4", "    5–7 × 3",
                             "    4"]
    assert [row.cells[0] for row in table.rows[2:]] == ["40 B", "30 B", "11 B"]
    gap = _table_of(*(row for row in rows if row[0] != "layers.4"))
    assert _names(gap) == ["total", "  layers", "    0–3 × 4", "    5–7 × 3"]


def test_what_holds_nothing_sets_no_layer_apart():
    rows = [(f"layers.{i}", "parameter", 10) for i in range(4)]
    rows += [("layers.2", "gradient", 0), ("gone", "activation", 0)]
    assert _names(_table_of(*rows)) == ["total", "  layers.0–3 × 4"]
    assert _names(_table_of()) == ["total"]


def test_a_layer_that_shrinks_is_apart():
    rows = [(f"layers.{i}", "parameter", -1 if i == 2 else 3) for i in range(4)]
    assert _names(_table_of(*rows)) == ["total", "  layers", "    0–1 × 2",
                                        "    3", "    2"]


def test_ten_follows_nine_and_zero_one_is_no_number():
    rows = [(f"layers.{i}", "parameter", 1) for i in range(12)]
    assert _names(_table_of(*rows))[-1] == "  layers.0–11 × 12"
    rows = [(f"s.{name}", "parameter", 1)
            for name in ("0", "00", "01", "1", "9" * 5000)]
    assert _names(_table_of(*rows))[1:5] == ["  s", "    0–1 × 2", "    00",
                                             "    01"]


def test_a_path_of_one_is_one_line():
    table = _table_of(("stage/net.mlp.up", "parameter", 4), depth=1)
    assert _names(table) == ["total", "  stage/net.mlp.up"]
    table = _table_of(("stage/net.mlp.up", "parameter", 4),
                      ("stage/net.mlp", "activation", 1))
    assert _names(table) == ["total", "  stage/net.mlp", "    up"]


def test_no_name_follows_a_count():
    rows = [(f"layers.{i}.0", "parameter", 1) for i in range(3)]
    assert _names(_table_of(*rows)) == ["total", "  layers.0–2 × 3", "    0"]


def test_scopes_nest_deeper_than_python_calls():
    table = _table_of(("/".join(["again"] * 5000), "activation", 1))
    assert _names(table)[1].count("again") == 5000


def test_what_is_cut_off_is_counted_and_the_largest_stay():
    rows = [(f"a.{name}", "parameter", size)
            for name, size in (("x", 5), ("y", 50), ("z", 1))]
    table = _table_of(*rows, most=4, more="ask")
    assert _names(table) == ["total", "  a", "    y"]
    assert table.rest == "and 2 smaller, 6 B; ask"
    assert _table_of(*rows, most=5).rest == ""


def test_depth_is_levels_below_the_total():
    rows = [("a.b.c", "parameter", 1), ("a", "buffer", 1), ("a.d", "buffer", 1)]
    assert _names(_table_of(*rows, depth=0)) == ["total"]
    assert _names(_table_of(*rows, depth=1)) == ["total", "  a"]
    assert _names(_table_of(*rows, depth=2)) == ["total", "  a", "    b.c",
                                                 "    d"]


def test_changes_that_cancel_are_large():
    columns = [_tree.Column("bytes", str),
               _tree.Column("blocks", str, weighs=False)]
    table = _table_of(("a.up", "x", 90, 900), ("a.down", "x", -90, 0),
                      ("b", "x", 50, 5), ("same", "x", 0, 1), columns=columns)
    assert _names(table) == ["total", "  a", "    down", "    up", "  b",
                             "  same"]
    assert [row.cells for row in table.rows] == [
        ("50", "906"), ("0", "900"), ("-90", "0"), ("90", "900"), ("50", "5"),
        ("0", "1")]
    assert table.rows[1].notes == ()  # nothing came of it


_NAMES = ["a", "b", "c", "0", "1", "2", "3", "[red]", "evil\nname\x1b[31m",
          "🚀", "層", "e\u0301", "x" * 300, "\u202e", "❤\ufe0f", " ", "\udc80"]


def _rows(rng, columns=2):
    return [(rng.choice("./").join(rng.choice(_NAMES) for _ in
                                   range(rng.randint(0, 4))),
             rng.choice(("parameter", "gradient", "optimizer_state")),
             *(rng.choice((0, 1, 99, 1 << 20, 123456789)) for _ in
               range(columns))) for _ in range(rng.randint(0, 60))]


def test_sums_hold_for_any_tree():
    """Of lines: what each has itself, and what is left out below it."""
    rng = random.Random(7)
    for _ in range(60):
        rows = _rows(rng)
        tree = _tree.Tree(rows, [_tree.Column("a", str), _tree.Column("b", str)])
        whole = [sum(row[i] for row in rows) for i in (2, 3)]
        depth = rng.choice((None, 0, 1, 2))
        lines = tree.lines(depth)
        own = [list(line.node.total) for line in lines]
        for line in lines[1:]:
            for i in (0, 1):
                own[line.above][i] -= line.node.total[i]
                assert own[line.above][i] >= 0
        assert [sum(one[i] for one in own) for i in (0, 1)] == whole
        for most in {1, 2, 5, len(lines) // 2 + 1, len(lines), len(lines) + 1}:
            table = tree.table(depth, most)
            shown = len(table.rows) + bool(table.rest)
            assert shown <= max(most, 2)
            if not table.rest:
                assert len(table.rows) == len(lines)
                continue
            count, size = table.rest.split()[1], table.rest.split()[3]
            assert int(count) + len(table.rows) == len(lines)
            # Whoever is shown is below somebody who is: own bytes of the
            # shown lines, and what is told of the rest, are everything.
            order = sorted(range(len(lines)), key=lambda i: (
                -max(lines[i].node.weight), i))[:len(table.rows)]
            assert all(lines[i].above in (None, *order) for i in order)
            assert sum(own[i][0] for i in order) + int(size) == whole[0]


def test_no_line_is_wider_than_the_terminal():
    rng = random.Random(11)
    for _ in range(60):
        columns = rng.choice((1, 2, 5))
        table = _tree.Tree(_rows(rng, columns), [
            _tree.Column(f"column {i}") for i in range(columns)],
            rng.choice(("", "device 0 at its peak"))).table()
        for width in range(22 + 12 * columns, 130, 9):
            for line in _table.text(table, width):
                assert line.isprintable() and cell_len(line) <= width, line


def test_numbers_are_never_cut():
    rows = [_table.Row("n" * 40, ("123456789 B", "987654321 B"),
                       ("a note",))]
    for width in (0, 1, 20, 40):
        lines = list(_table.text(_table.Table(("", "one", "two"), rows), width))
        assert "123456789 B  987654321 B" in lines[1]
        assert lines[1].split()[0] in ("nnnn…nnnnnnn", "nnnnn…nnnnnnnn")
