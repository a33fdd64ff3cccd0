# SPDX-License-Identifier: Apache-2.0
"""Attributes of other people's classes and modules, replaced and put back.

    hooks = Replaced()
    hooks.replace(owner, "name", lambda original: ours)
    hooks.when_imported("package.module", lambda module: hooks.replace(...))
    hooks.put_back()

    install, uninstall = installed(lambda hooks: hooks.replace(...))

A replacement goes onto the owner itself, also where the original is inherited;
then putting back removes it. What somebody else put in our place since is left
alone. A module that is not imported yet is waited for, never imported
(import_hook.py).

Thread-safety: replace and put_back under the caller's lock. A waited-for
module's callback runs on the thread that imports it, under its import lock.
"""

import functools

from stratalloc._hooks.import_hook import AwaitedModule

_MISSING = object()


class Replaced:
    """What was replaced, to be put back."""

    def __init__(self):
        self._made = []  # (owner, name, what was in its own dict, ours)
        self._awaited = []

    def replace(self, owner, name, make):
        """owner.name = make(its present value); False if it has none."""
        present = getattr(owner, name, _MISSING)
        if present is _MISSING:
            return False
        own = vars(owner).get(name, _MISSING)
        # A property or classmethod as it is written, not what it gives.
        ours = make(present if own is _MISSING else own)
        setattr(owner, name, ours)
        self._made.append((owner, name, own, ours))
        return True

    def when_imported(self, name, callback):
        """callback(module), now or at the end of its import, and if reloaded."""
        awaited = AwaitedModule(name, callback)
        self._awaited.append(awaited)
        awaited.begin()

    def put_back(self):
        while self._awaited:
            self._awaited.pop().end()
        while self._made:
            owner, name, own, ours = self._made.pop()
            if vars(owner).get(name, _MISSING) is not ours:
                continue
            if own is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def installed(make):
    """install() and uninstall() of a module of hooks, both idempotent.

    install() calls make(Replaced()), and uninstall() takes back what that made,
    now or at the end of an import.
    """
    hooks = None

    def install():
        nonlocal hooks
        if hooks is None:
            hooks = Replaced()
            make(hooks)

    def uninstall():
        nonlocal hooks
        if hooks is not None:
            hooks.put_back()
            hooks = None

    return install, uninstall


def passing_on(original, ours):
    """`ours` with the name and documentation of `original`."""
    return functools.wraps(original)(ours)
