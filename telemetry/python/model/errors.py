# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with a file: each says what, why and what to do next."""


class TelemetryError(ValueError):
    """A file or a run cannot be used as it was asked for."""


class SnapshotError(TelemetryError):
    """A file is no snapshot of torch's, or one that nobody should open."""


class MissingPackageError(ImportError):
    """A format needs a package that is not installed."""

    def __init__(self, what, package, error):
        super().__init__(
            f"stratalloc: {what} needs the package {package}, which cannot be "
            f"imported ({error}); run `pip install \"stratalloc[telemetry]\"`")
