"""CSV and TSV: RFC 4180, every cell a text."""
