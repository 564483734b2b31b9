"""Whether the accelerators are idle, and who uses them."""
