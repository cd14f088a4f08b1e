"""What commands show on a terminal: progress, tables, plots."""
