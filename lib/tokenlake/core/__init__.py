"""Names under the paths that the seed documents import them from."""
