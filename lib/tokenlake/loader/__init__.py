"""From packed datasets and mixtures to batches: what a trainer iterates."""
