"""Cached words: a tokenizer backend that splits text and looks each word up.

A tokenizer.json splits a text into words (or segments that no merge crosses) and
encodes each word by itself. Real text repeats its words: 1% to 3% of them are distinct.
This package compiles the splitting rules of a tokenizer.json to an automaton and looks
the ids of each word up in a table. A word that the table does not hold is encoded by
the merges of the tokenizer or, where these do not decide alone, by the reference
implementation. The character classes that the splitting depends on are read from the
installed `tokenizers`.

=================== ==========================================================================
`expressions`       Parses the regular expression of a split into a tree.
`classes`           Asks the installed `tokenizers` which code points a character class holds.
`automaton`         Compiles a tree and its classes to transition tables.
`rules`             Reads the splitting rules of a tokenizer.json, or says why they are not supported.
`added`             Finds added tokens in texts.
`kernels`           Compiled loops over UTF-8 bytes.
`signatures`        The parameters and results of these loops.
`native`            Compiles the loops once for each machine, and loads them without numba.
`table`             The table of words and their ids.
`merging`           Encodes new words by the merges of the tokenizer.
`kept`              Tables of a vocabulary, kept on disk.
`engine`            Encodes batches of text with all of these.
=================== ==========================================================================
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
