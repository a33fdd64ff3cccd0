# SPDX-License-Identifier: Apache-2.0
"""The twelve functions of the scope stack, and the integers they take.

The functions are those of the extension `stratalloc._native._scopes`; a test
replaces them with its own by `use(fake)`. The integers are the values of
allocator/base/ids.h.
"""

# Category: what a block is charged as.
CATEGORIES = ("unknown", "parameter", "buffer", "gradient", "optimizer_state",
              "activation", "input", "temporary", "workspace")
(UNKNOWN, PARAMETER, BUFFER, GRADIENT, OPTIMIZER_STATE, ACTIVATION, INPUT,
 TEMPORARY, WORKSPACE) = range(9)
# Spellings of earlier versions.
OLDER = {"optimizer": "optimizer_state"}

# Lifetime class: which blocks it may share a handle with; TRANSIENT and STAYING
# are never evicted.
LIFETIMES = ("unknown", "persistent", "gradient", "optimizer", "transient",
             "staying")
(LIFETIME_UNKNOWN, LIFETIME_PERSISTENT, LIFETIME_GRADIENT, LIFETIME_OPTIMIZER,
 LIFETIME_TRANSIENT, LIFETIME_STAYING) = range(6)

ROOT = 0

_functions = None


def functions():
    """The object with push, enter, leave, pop, depth, current, recategorize, intern, name,
    owned, relabel and adopt.

    Raises ImportError when the extension is missing: a source tree or a
    damaged installation; `./dev build` builds and installs it.
    """
    global _functions
    if _functions is None:
        from stratalloc._native import _scopes

        _functions = _scopes
    return _functions


def use(replacement):
    """Puts `replacement` in the extension's place; None puts it back.

    Returns what was there. For tests, while nothing is installed.
    """
    global _functions
    previous, _functions = _functions, replacement
    return previous
