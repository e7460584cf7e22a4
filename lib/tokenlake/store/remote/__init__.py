"""Objects at URLs: ranged reading, retries, one file per protocol; what inputs and read-only stores share."""
