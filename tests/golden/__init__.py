"""Versions that an earlier release wrote, and what they were made of."""
