# SPDX-License-Identifier: MIT
"""One module a format. Each takes what rouse/sections.py made, or tables; none of them decodes."""
