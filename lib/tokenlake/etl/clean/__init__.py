"""What is left out before there are tokens: duplicates, evaluation sets, poor text; see docs/cleaning.md."""
