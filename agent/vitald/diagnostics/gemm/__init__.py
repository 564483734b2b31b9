"""
Matrix multiplications on all GPUs of this node: the program that multiplies, where its library is,
what it prints, and the comparison of the results.
"""
