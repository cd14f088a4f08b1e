"""What the commands show on a terminal: live progress, tables and plots."""
