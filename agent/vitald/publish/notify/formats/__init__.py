"""Bodies of notifications: one module for each format. body_formats has the table of them."""
