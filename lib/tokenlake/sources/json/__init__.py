"""JSON Lines and JSON arrays: a strict judge, and a vectorised reader that defers to it."""
