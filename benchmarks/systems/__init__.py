"""What is compared, one program per system; each does the whole job and prints nothing
that matters.

The programs are run by :mod:`benchmarks.measure` and import nothing they do not need,
since imports are part of what a run costs.
"""
