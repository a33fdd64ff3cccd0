# SPDX-License-Identifier: Apache-2.0
"""Types of what public functions take and return, for type checkers and editors.

Aliases of more than one module. Importing this imports no torch.
"""

import os
from typing import TYPE_CHECKING, Literal, Union

if TYPE_CHECKING:
    import torch

Device = Union[int, str, "torch.device", None]  # as torch takes it
Path = Union[str, "os.PathLike[str]"]
Size = Union[int, float, str]  # whole bytes, or text as "2 GiB"

Codec = Literal["off", "lz4", "zstd"]
TelemetryLevel = Literal["off", "counters", "events", "callsites", "full"]
Category = Literal[
    "unknown", "parameter", "buffer", "gradient", "optimizer_state",
    "activation", "input", "temporary", "workspace", "optimizer"]
