"""Columns of a row to a prompt and its answer.

A template is parsed once into pieces (:mod:`.template`), laid out with system message and worked examples for one
tokenizer (:mod:`.layout`), and filled with values (:mod:`.values`) column by column (:mod:`.renderer`).
"""
