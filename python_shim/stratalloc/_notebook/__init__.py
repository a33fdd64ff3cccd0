# SPDX-License-Identifier: Apache-2.0
"""%gpumem for IPython."""
