# SPDX-License-Identifier: MIT
"""One module a format. Each takes what query/sections.py made, or tables; none of them decodes."""
