"""Chat: conversations become text by a chat template, with the spans that bear loss."""
