"""The tour of ``make demo``: a corpus, a tokenizer and a configuration that need no download."""
