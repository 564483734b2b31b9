"""Where facts come from: one module a source. A source reads, recognises and dates; it does not
judge.
"""
