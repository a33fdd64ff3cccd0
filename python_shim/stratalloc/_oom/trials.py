# SPDX-License-Identifier: Apache-2.0
"""The refused request, made again on a copy of the device's blocks after
something was done about it: what the verdict and the suggestions rest on.

Asked of the core while the refusal's listener runs; each question costs one
copy, for which other threads' mallocs wait, so answers are kept and there is a
limit to them, by number and, where a copy takes long, by time. Raises
RuntimeError as the core does.
"""

import time

from stratalloc._native import core as _core
from stratalloc._oom import arithmetic

# Questions, and seconds; what is asked beyond them counts as not served.
_MOST, _SECONDS = 48, 2
_ALL = 1 << 60  # bytes, more than any card or disk has


class Trials:
    """Of one Refusal pointer."""

    def __init__(self, told, facts):
        self._told, self._known = told, {}
        self._left, self._end = _MOST, time.monotonic() + _SECONDS
        self.base = self._ask({})  # the first: it has time
        self._whole, self._fits = facts["rounded"], None
        rows = arithmetic.table(facts)
        beside = max(rows[key] for key in ("other_processes", "non_torch",
                                           "unknown"))
        self._named = {
            "streams_end": {"streams_end": 1},
            "pools_end": {"pools_end": 1},
            "more_limit": {"more_limit": self.base.missing},
            "more_card": {"more_card": beside},
            "more_room": {"more_room": _ALL},
        }

    @property
    def fits(self):
        """Bytes of a request that would be served as things are, at most what
        was refused; 0: none, or it is an operator; None: the time was over."""
        if self.base.served:
            return self._whole
        if self._fits is None:
            # Many searches on one copy: only for who needs it.
            found = self._ask({"measure": 1})
            self._fits = None if found is None else found.fits
        return self._fits

    def served(self, what):
        """With one thing done; `what`: of _named."""
        return self.would_serve(**self._named[what])

    def would_serve(self, **trial):
        """With these fields of Trial."""
        key = tuple((name, tuple(value) if isinstance(value, list) else value)
                    for name, value in sorted(trial.items()))
        if key not in self._known:
            found = self._ask(trial)
            self._known[key] = bool(found is not None and found.served)
        return self._known[key]

    def _ask(self, trial):
        if self._left == 0 or time.monotonic() > self._end:
            return None
        self._left -= 1
        return _core.try_again(self._told, [trial])[0]
