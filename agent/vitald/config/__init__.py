"""
The configuration file.

Each section is declared beside what it configures, in a module `settings`: its keys, defaults,
readers and help (`section`, `readers`). `file` reads sections and reports every mistake with its
line (`errors`); `values` holds what was read. `sections` lists the sections of the whole file, from
which `config.example.toml` derives.
"""
