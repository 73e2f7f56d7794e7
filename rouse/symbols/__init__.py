# SPDX-License-Identifier: MIT
"""Names for addresses: functions, files and lines."""
