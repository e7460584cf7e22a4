"""The command line: one file per group of commands, ``app`` ties them together.

Results go to stdout, progress and errors to stderr. A command returns its exit code:
0 done, 1 failed, 2 usage or configuration, 3 verification found damage, 130 cancelled.
A command's module is imported when that command runs (``app`` names it by a string): ``--help`` stays
fast and ``run`` reaches Prefect's start-up without importing what only ``sql`` needs.
"""
