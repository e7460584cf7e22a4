"""Lengths: cutting texts to a budget of tokens, sharing budgets out, and padding rows to one width.

All of it counts tokens, never characters. ``truncation`` chooses where a text is cut (``words`` and ``sentences`` say
where it may be), ``budgets`` shares a budget out among the columns of a row, ``padding`` makes rectangles of rows and
``buckets`` says how wide they should be; ``manager`` stands in front of them with a tokenizer. For documents that are
encoded already there are ``placed`` (their texts are at hand) and ``ids``.
"""
