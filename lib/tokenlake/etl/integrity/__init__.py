"""Verification: is a version still, byte for byte and row for row, what was committed?"""
