# SPDX-License-Identifier: MIT
"""One module per format. Each renders the sections of query/sections.py, or tables. None decodes."""
