"""
What dcgmi prints, read.

    document   bytes to one normal form, whatever the version and the noise around it
    reading    the normal form, the exit code and the level that was asked for to a report
    answers    the short answers: health, discovery, version
    tables     the tests of each level, exit codes and known texts, from outputs.toml
"""
