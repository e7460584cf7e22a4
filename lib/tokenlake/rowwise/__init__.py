"""The row-by-row API and the fluent pipeline, over the stages that builds consist of.

A source of rows is like a shelf of books with numbered pages: ``shard_names`` are the
titles, ``open_shard`` reads a book from its first page and ``open_shard_at_row`` from
any other, and a page keeps its number whatever is torn out (filters, predicates, bad
records). Rows are batches of the readers iterated; opening at a row is the readers'
seek.

- `source`: contract of a source, base of all sources here, and the sources that its
  methods return
- `shards`: properties of a shard, rows of several shards ahead of time, the position of
  a reader, the number of rows drawn, and the errors of all sources
- `files`, `file_rows`: sources whose shards are files, and the rows of one file from
  any row on
- `combine`, `mixed`: rows in memory; joined, cut, batched and packed sources; mixtures
  by weights
- `tokenized`: rows to tokens by the renderer, encoder and length policy of a build
- `batches`, `loader`: rows to batches of arrays in an order that can be resumed, and
  their delivery; data that is awaited by index
- `save`: writers; `tokenize_and_save` and `pretokenize`
- `stage`, `pipeline`: contract of a stage and the tokens that it keeps between runs;
  the six stages, and the fluent :class:`Pipeline`
- `legacy`: the older interface, a mixture described by one object
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
