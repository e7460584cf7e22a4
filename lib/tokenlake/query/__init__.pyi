"""What others may import from this package, and where each name is defined."""

from tokenlake.query.sequences import read_sequences as read_sequences
