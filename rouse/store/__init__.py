# SPDX-License-Identifier: MIT
"""Read the shared files in which processes record, and the recordings made from them."""
