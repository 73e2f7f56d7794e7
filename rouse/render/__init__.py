# SPDX-License-Identifier: MIT
"""One module per format. Each renders sections of query/sections.py, or tables; none decodes."""
