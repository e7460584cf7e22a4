"""Lengths: cutting texts to a budget of tokens, sharing budgets out, and padding rows to one width.

All of it counts tokens, never characters. ``truncation`` chooses where a text is cut (``words`` and ``sentences`` say
where it may be), ``budgets`` shares a budget out among the columns of a row, ``padding`` makes rectangles of rows and
``buckets`` says how wide they should be; ``manager`` stands in front of them with a tokenizer. For documents that are
encoded already there are ``placed`` (their texts are at hand) and ``ids``.
"""

from tokenlake.lengths.buckets import bucket_of, powers, quantiles
from tokenlake.lengths.budgets import BUDGET_STRATEGIES, BudgetStrategy, allocate
from tokenlake.lengths.padding import IGNORED, PADDING_STRATEGIES, Padded, PaddingStrategy, pad
from tokenlake.lengths.truncation import SIDES, SMART_SHARE, STRATEGIES, Cut, Side, Strategy, truncate

__all__ = [
    "BUDGET_STRATEGIES",
    "IGNORED",
    "PADDING_STRATEGIES",
    "SIDES",
    "SMART_SHARE",
    "STRATEGIES",
    "BudgetStrategy",
    "Cut",
    "Padded",
    "PaddingStrategy",
    "Side",
    "Strategy",
    "allocate",
    "bucket_of",
    "pad",
    "powers",
    "quantiles",
    "truncate",
]
