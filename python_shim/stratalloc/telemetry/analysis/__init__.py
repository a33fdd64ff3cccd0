# SPDX-License-Identifier: Apache-2.0
"""What a Run tells when it is asked: each answer is a Result, for people and
as JSON."""
