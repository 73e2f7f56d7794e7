# SPDX-License-Identifier: MIT
"""`python -m rouse` is the command."""

from rouse.main import main

if __name__ == "__main__":
    main()
