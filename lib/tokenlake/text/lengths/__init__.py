"""Lengths: cutting texts to a budget of tokens, sharing budgets among columns, and padding rows to one width.

All of it counts tokens, never characters.
"""
