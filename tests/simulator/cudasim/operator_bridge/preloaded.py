# SPDX-License-Identifier: Apache-2.0
"""torch on top of the simulated libraries, for test files that share a process.

Imported by bazel/pytest_files.py before its forks, as the target's `libraries`
say. Each file then calls simulated.load() in a fork of its own.
"""

from tests.simulator.cudasim.operator_bridge import simulated

simulated.preload()
