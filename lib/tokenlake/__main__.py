"""``python -P -m tokenlake``: the command line without its script on the PATH.

Without ``-P`` Python itself looks for modules in the current folder first.
"""

from tokenlake.cli.app import main

raise SystemExit(main())
