"""Parquet as shards of packed rows use it: Thrift structures, pages, the dictionary of ids, and the writer."""
