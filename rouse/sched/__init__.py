# SPDX-License-Identifier: MIT
"""What the kernel's scheduler and /proc report about threads, and what this machine permits."""
