# SPDX-License-Identifier: Apache-2.0
"""flame(): who held memory at the peak, as a tree: module, category, site.

A node is {"n": name, "k": kind, "b": bytes, "c": blocks, "in": nodes}, the
largest first. The nodes of a node that has any add up to it.
"""

from stratalloc._rendering.table import natural
from stratalloc.telemetry import model
from stratalloc.telemetry.analysis.lines import line
from stratalloc.telemetry.report.bounds import levels, name

MODULE, CATEGORY, SITE, REST = range(4)


class _Node:
    __slots__ = ("name", "kind", "bytes", "count", "below")

    def __init__(self, name, kind):  # noqa: redefined - as the field
        self.name, self.kind = name, kind
        self.bytes = self.count = 0
        self.below = {}

    def child(self, said, kind):
        found = self.below.get((kind, said))
        if found is None:
            found = self.below[kind, said] = _Node(said, kind)
        return found

    def add(self, one):
        self.bytes += one.bytes
        self.count += one.count


def flame(run, holders, most):
    """The tree of [replay.Holder], of about `most` nodes: the smallest are one
    in each."""
    top = _Node("", MODULE)
    lines = {}
    for one in holders:
        node = top
        node.add(one)
        for part in levels(run.scopes[one.scope]):
            node = node.child(part, MODULE)
            node.add(one)
        node = node.child(model.CATEGORIES[one.category], CATEGORY)
        node.add(one)
        if one.site:
            if one.site not in lines:
                lines[one.site] = name(line(run, one.site))
            node.child(lines[one.site], SITE).add(one)
    return _told(top, _kept(top, most))


def _kept(top, most):
    """ids of the largest nodes; whoever is kept, all above it are."""
    found, level = [], [top]
    depth = 0
    while level:
        found += [(-node.bytes, depth, number, id(node))
                  for number, node in enumerate(level)]
        level = [child for node in level for child in node.below.values()]
        depth += 1
    found.sort()
    return {one[-1] for one in found[:most]}


def _told(node, kept):
    below = sorted(node.below.values(), key=lambda one: (
        -one.bytes, natural(one.name)))
    told = [_told(one, kept) for one in below if id(one) in kept]
    rest = [one for one in below if id(one) not in kept]
    if rest and told:
        told.append({"n": f"({len(rest)} smaller)", "k": REST,
                     "b": sum(one.bytes for one in rest),
                     "c": sum(one.count for one in rest)})
    unknown = (node.bytes - sum(one.bytes for one in below),
               node.count - sum(one.count for one in below))
    if told and unknown[1]:
        told.append({"n": "(line not known)", "k": REST, "b": unknown[0],
                     "c": unknown[1]})
    found = {"n": node.name, "k": node.kind, "b": node.bytes, "c": node.count}
    if told:
        found["in"] = told
    return found
