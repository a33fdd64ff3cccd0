# SPDX-License-Identifier: Apache-2.0
"""Which jobs a run of the yardstick measures, and on which card.

Thread-safety: yes; values only.
Lifetime: that of a run.
Errors: none.
Invariants: host memory is phantom with numbers off, so a plan has no bound by
the machine's.
"""

import dataclasses

from tests.system.speed import jobs
from tests.system.speed import sizing


@dataclasses.dataclass(frozen=True)
class Plan:
    """The card, the multiples and the passes of a run."""

    card: int = 8 * sizing.GIB
    width: int = 4096
    host: str = "1.25"
    multiples: tuple = (1.05, 1.25, 1.5, 2., 3.)
    ratios: tuple = (.1, 1., 2.)
    training_multiples: tuple = (1.05, 1.5, 2., 3.)
    training_ratios: tuple = (1.,)
    optimizers: tuple = tuple(jobs.OPTIMIZERS)
    # Name of llama.SHAPES, bytes of the card, tokens.
    llamas: tuple = (("7B", 8 * sizing.GIB, 32), ("7B", 8 * sizing.GIB, 512),
                     ("70B", 24 * sizing.GIB, 32),
                     ("70B", 24 * sizing.GIB, 512))
    offload_multiples: tuple = (1.5,)
    curve_model: int = 4 * sizing.GIB
    requests: int = 64
    warm_up: int = 12
    training_warm_up: int = 6
    measured: int = 8
    timeout: int = 1200

    def about(self):
        """The keys of each row that say what it was measured on."""
        return {"card": "h200, a twentieth of its tensor cores (card.json)",
                "card_bytes": self.card}

    def budget(self, need):
        """The host budget of a job that allocates `need` bytes at its peak."""
        return sizing.host_budget(self.host, need, self.card)


def quick(plan):
    """The same on a small card with fewer jobs and small layers."""
    return dataclasses.replace(
        plan, card=sizing.GIB, width=2048, multiples=(1.25, 2.), ratios=(1.,),
        training_multiples=(1.5,), curve_model=sizing.GIB,
        optimizers=("SGD", "AdamW fused"),
        llamas=(("small", 128 * sizing.MIB, 32),), warm_up=6,
        training_warm_up=3, measured=2)
