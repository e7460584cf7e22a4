"""What others may import from this package, and where each name is defined."""

from tokenlake.runtime.parquet.thrift import read_struct as read_struct
