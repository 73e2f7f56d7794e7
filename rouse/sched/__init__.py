# SPDX-License-Identifier: MIT
"""Reports of the kernel's scheduler and /proc about threads, and what this machine permits."""
