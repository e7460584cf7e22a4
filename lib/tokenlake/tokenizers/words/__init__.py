"""Cached words: a tokenizer implementation that splits text itself and looks each word up.

A tokenizer.json splits a text into words (or segments that no merge crosses) and encodes each word by itself. Real
text repeats its words: 1% to 3% of them are distinct. This package compiles the splitting rules of a tokenizer.json to
an automaton, looks the ids of each word up in a table, and asks the reference implementation for the ids of words that
the table does not hold. The ids are therefore the reference's own; only the splitting is done twice, and the
character classes that it depends on are read from the installed `tokenizers`.

=================== ==========================================================================
`expressions`       Parses the regular expression of a split into a tree.
`classes`           Asks the installed `tokenizers` which code points a character class holds.
`automaton`         Compiles a tree and its classes to transition tables.
`rules`             Reads the splitting rules of a tokenizer.json, or says why they are not supported.
`kernels`           Compiled loops over UTF-8 bytes.
`table`             The table of words and their ids.
`engine`            Encodes batches of text with all of these.
=================== ==========================================================================
"""
