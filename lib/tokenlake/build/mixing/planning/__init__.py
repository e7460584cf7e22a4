"""Planning a build from stored versions: which rows of which parents, in what order, in which units."""
