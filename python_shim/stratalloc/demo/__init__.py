# SPDX-License-Identifier: Apache-2.0
"""The demo: a real model on a GPU that is smaller than its parameters.

`job` runs one phase in a process of its own, `story` starts the phases and
tells what happened, `verdict` decides whether it was right.
"""
