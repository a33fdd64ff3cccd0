# SPDX-License-Identifier: Apache-2.0
"""What one document imports as `panther`, for running its blocks: a linear
layer of two factors, and nothing else of that package. Of tests alone."""

from panther import nn

__all__ = ["nn"]
