"""Mixing: several sources as one stream, with exact weights that may change along the way.

``schedule`` says which weights hold at a step, ``counts`` how many rows of each source come before a position,
``mixture`` which row is at a position, and ``stream`` where that row is stored. All are functions: nothing is drawn,
stored or replayed.
"""
