# SPDX-License-Identifier: MIT
"""`python -m rouse` is the command."""

import sys


def run() -> None:
    try:
        from rouse.cli.main import main  # it needs packages that may not be there

        main()  # so do the modules that a command imports when it begins
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "rouse":
            raise
        need = f"the Python package {error.name}; install it with pip"
        print(f"rouse: needs {need}", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    run()
