"""Parquet: row groups in bounded steps."""
