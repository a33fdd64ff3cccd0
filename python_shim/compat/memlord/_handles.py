# SPDX-License-Identifier: Apache-2.0
"""Handle: what a program ends hooks by. Nothing here fails; any thread."""


class Handle:
    """Hooks that are on until disable(); also a context manager.

    Let go of, it stays as long as its tracker does.
    """

    def __init__(self, tickets, ended):
        """`ended`: called with this handle at each disable()."""
        self._tickets, self._ended = tickets, ended

    def disable(self):
        """Everything that was replaced for this handle is put back, if no
        other needs it. Again: nothing."""
        for ticket in self._tickets:
            ticket.end()
        self._ended(self)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.disable()
