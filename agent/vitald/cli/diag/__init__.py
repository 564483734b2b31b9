"""`vitald diag`: diagnostics from the command line."""
