"""Flat directories: rows as files that any tool reads, of a committed version or of whoever brings rows."""
