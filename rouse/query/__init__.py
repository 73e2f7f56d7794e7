# SPDX-License-Identifier: MIT
"""The queries of a report, and the sections that present their results."""
