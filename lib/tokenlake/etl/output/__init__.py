"""Where a unit's documents end up: packed sequences, rows of a document, preferences; parts and quarantine."""
