"""Writing the units of such a build: rows taken from the parents, in order, with an account of each source."""
