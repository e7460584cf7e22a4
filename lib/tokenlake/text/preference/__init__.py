"""Preferences: rows with better and worse answers become the ids that preference trainers read."""
