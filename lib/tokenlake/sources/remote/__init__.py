"""Objects at URLs: listing, ranged reading, retries, one file per protocol."""
