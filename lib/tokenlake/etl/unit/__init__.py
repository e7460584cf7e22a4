"""Units of work: texts that are tokenized, stored rows that are mixed or packed again, and the files they become."""
