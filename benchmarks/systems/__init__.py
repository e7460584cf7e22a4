"""Programs of the compared systems, one per system.

Each does the whole work of its system. They are run by :mod:`benchmarks.measure`, and
import only the packages that they need, since imports are part of the costs of a run.
"""
