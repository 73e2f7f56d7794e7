# SPDX-License-Identifier: MIT
"""Where each thread's time goes: the live and the batch view of `rouse top`."""
