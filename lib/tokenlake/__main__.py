"""``python -P -m tokenlake``: the command line without its script on the PATH.

Without ``-P`` Python itself looks for modules in the current folder first.
"""

import os

try:
    from tokenlake.cli.app import main
except KeyboardInterrupt:  # Ctrl-C before there is anything to end
    os.write(2, b"interrupted\n")
    os._exit(130)

if __name__ == "__main__":
    raise SystemExit(main())
