# SPDX-License-Identifier: Apache-2.0
"""Linear layers whose matrix is the product of two thin ones."""

import torch
from torch.nn import Sequential

__all__ = ["SKLinear", "Sequential"]


class SKLinear(torch.nn.Module):
    """x -> x @ down @ up + bias, with sketch_size columns in between.

    Args:
      in_features, out_features: as of torch.nn.Linear.
      sketch_size: the rank at most; at least 1.
    """

    def __init__(self, in_features, out_features, sketch_size):
        super().__init__()
        if sketch_size < 1:
            raise ValueError(f"sketch_size is {sketch_size}, not 1 or more")
        self.down = torch.nn.Parameter(torch.empty(in_features, sketch_size))
        self.up = torch.nn.Parameter(torch.empty(sketch_size, out_features))
        self.bias = torch.nn.Parameter(torch.zeros(out_features))
        torch.nn.init.normal_(self.down, std=in_features ** -.5)
        torch.nn.init.normal_(self.up, std=sketch_size ** -.5)

    @property
    def weight(self):
        """The matrix that the two make, (out_features, in_features)."""
        return (self.down @ self.up).T

    def forward(self, x):
        return x @ self.down @ self.up + self.bias
