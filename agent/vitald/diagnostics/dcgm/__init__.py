"""
Reads the output of dcgmi.

    document     bytes to one normal form, for all versions, whatever surrounds the documents
    run_context  one run: its documents, exit code, level and GPUs
    meanings     what a message means, by the catalogue
    faults       the faults that the documents report, and those that a bare failure implies
    gaps         tests that are missing or were skipped
    reading      the report on the run
    multinode    mndiag: one test on many hosts
    answers      short answers: discovery, version, no engine
    tables       the tests of each level, exit codes and known texts, from outputs.toml
"""
