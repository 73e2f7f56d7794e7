# SPDX-License-Identifier: MIT
"""`python -m rouse` is the command."""

import sys


def run() -> None:
    try:
        # Both need packages that may not be there: each command imports its modules when it begins.
        from rouse.cli.main import main

        main()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "rouse":
            raise
        need = f"the Python package {error.name}; install it with pip"
        print(f"rouse: needs {need}", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    run()
