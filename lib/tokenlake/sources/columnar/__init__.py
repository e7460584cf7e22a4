"""What Parquet and Arrow IPC share: texts out of columns, budgets, reads in windows."""
