# SPDX-License-Identifier: MIT
"""Models that predict: of clock ticks, of scaling, and of locks that are changed."""
