"""Plain text: a file or a line is a document."""
