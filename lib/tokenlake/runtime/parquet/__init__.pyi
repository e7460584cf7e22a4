"""What others may import from this package, and where each name is defined."""

from tokenlake.runtime.parquet.dictionary_page import identity_dictionary as identity_dictionary
from tokenlake.runtime.parquet.page_headers import PageHeader as PageHeader
from tokenlake.runtime.parquet.page_headers import parse_header as parse_header
from tokenlake.runtime.parquet.page_headers import walk_pages as walk_pages
from tokenlake.runtime.parquet.thrift import read_struct as read_struct
from tokenlake.runtime.parquet.thrift_writer import write_thrift as write_thrift
from tokenlake.runtime.parquet.writer import open_shard as open_shard
