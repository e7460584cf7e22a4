"""Text: what is done to rows between reading and tokenizing.

A transform is a function of a row that also works on many rows at once; a renderer makes the text that is tokenized,
and says which spans of it bear loss.
"""
