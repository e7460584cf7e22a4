"""Files of this machine: patterns, hashes, listing."""
