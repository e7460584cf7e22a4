"""Arrow IPC: files by record batch, streams from their beginning."""
