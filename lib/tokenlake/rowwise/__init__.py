"""Rows one by one, in shards that can be opened at any row: the seeds' ``ShardedDataSource``.

Like a shelf of books with numbered pages: :attr:`ShardedDataSource.shard_names` are the titles, a file each;
``open_shard`` reads one from its first page, ``open_shard_at_row`` from any other, and the number of a page
is its place in the book, whether or not somebody tore out others (filters, predicates, bad records).
"""
