"""What a trainer installs: stores, shards, mixtures, the order of rows, loaders; beside them the trainer and proofs."""
