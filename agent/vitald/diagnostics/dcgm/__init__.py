"""
Reads the output of dcgmi.

    dcgmi_output   the documents in what was printed, whatever surrounds them
    document       one document in one normal form, for both generations
    conversion     single values of a document
    printed_table  the table of a run without -j, as a document
    run_context    one run: its documents, exit code, level and GPUs
    meanings       what a message means, by the catalogue
    faults         the faults that the documents report, and those that a bare failure implies
    gaps           tests that are missing or were skipped
    reading        the report on the run
    short_answers  short answers: discovery, version, no engine
    known_outputs  the tests of each level, exit codes and known texts, from outputs.toml
"""
