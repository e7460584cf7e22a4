"""Numbers to tables: what a person, a program or a Markdown page sees of a dataset.

``numbers`` writes single figures, ``table`` is the one shape every listing takes (rendered to a terminal
by the command line, to Markdown here, to JSON as rows of raw values), ``dataset`` turns a manifest into
tables, ``card`` writes the dataset card and Croissant metadata. Everything here is a pure function: same
input, same text.
"""
