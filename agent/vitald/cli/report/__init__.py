"""`vitald report`: one archive for a support case."""
