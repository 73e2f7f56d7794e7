# SPDX-License-Identifier: MIT
"""The laboratory: the six investigations on this machine, and how quiet it is."""
