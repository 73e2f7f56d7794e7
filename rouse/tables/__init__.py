# SPDX-License-Identifier: MIT
"""Recorded data as tables, and the engines that run queries over them."""
