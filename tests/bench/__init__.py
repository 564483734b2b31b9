"""What the daemon costs, beside what the machine itself costs in the same run: `python -m
tests.bench`.
"""
