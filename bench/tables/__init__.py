# SPDX-License-Identifier: MIT
"""What bench/run.py measures: a module a kind of table, and one that renders them all."""
