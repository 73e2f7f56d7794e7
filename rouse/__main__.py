# SPDX-License-Identifier: MIT
"""`python -m rouse` is the command."""

import sys


def run() -> None:
    try:
        from rouse.cli.main import main  # it needs packages that may not be there
    except ModuleNotFoundError as error:
        need = f"the Python package {error.name}; install it with pip"
        print(f"rouse: needs {need}", file=sys.stderr)
        sys.exit(3)
    main()


if __name__ == "__main__":
    run()
