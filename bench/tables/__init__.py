# SPDX-License-Identifier: MIT
"""The tables of bench/run.py: one module per kind of table, and one that renders them."""
