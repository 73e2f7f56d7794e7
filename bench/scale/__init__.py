# SPDX-License-Identifier: MIT
"""Simulates the scheduler on more processors than a machine has."""
