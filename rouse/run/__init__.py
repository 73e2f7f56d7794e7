# SPDX-License-Identifier: MIT
"""Run a program with the interposer, or record a running one."""
