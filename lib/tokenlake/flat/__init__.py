"""Flat directories: data files that any tool reads, and ``_tokenlake/manifest.json`` beside them.

::

    tokenized/
      train-00000-of-00002.parquet
      train-00001-of-00002.parquet
      _tokenlake/manifest.json       every file's size, sha256 and rows; what it was made of
      _tokenlake/tokenizer/ ...      of tokens: tokenizer, configuration, and bad records that were set aside

A store keeps versions and never overwrites; a flat directory is one result at a path, as the seeds' `save_dataset` and
`tokenize_and_save` promise it. It appears whole, under its name, when everything is written, or not at all.
"""
