"""Signed statements of what a checkpoint was trained on, recomputed from the integers of a loader's state."""
