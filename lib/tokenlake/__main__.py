"""``python -m tokenlake``: the command line without its script on the PATH."""

from tokenlake.cli.app import main

raise SystemExit(main())
