# SPDX-License-Identifier: Apache-2.0
"""Sizes of a model (model.py); apart from it, since that imports torch, which
the simulated device must be loaded before."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a model and of its batches."""

    hidden: int
    layers: int
    batch: int
    length: int
    heads: int = 16
    fused: bool = False

    @property
    def parameters(self):
        return self.layers * (12 * self.hidden**2 + 13 * self.hidden)
