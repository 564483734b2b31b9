"""README.txt of the archive of `vitald report`."""

from __future__ import annotations

README = """\
What is in this archive, written by `vitald report` on one node. Nothing here needs vitald: texts
and JSON only. All times are UTC.

Begin with summary.txt, and with errors.txt, which names what is missing and why.

  summary.txt       what is wrong and what to do, what was wrong, and how each open finding came
                    to be
  status.json       the verdict, the sources with their last reads, open findings and incidents
  findings.json     open and cleared findings in full: the raw line, what it means, what to do,
                    what clears it
  why.json          for each open finding: its events with their raw lines, its rule, who required
                    which action, its history
  incidents.json    which findings and events belong together, the root first; jobs that ran near
                    them
  events.jsonl      what has happened, one JSON object a line, the oldest first; `raw` is the line
                    as it was logged
  inventory/        components.json, gpus.json (serial numbers, VBIOS, driver), expected.json
                    (what should be here), pci.json (from sysfs, by vendor and device number);
                    devices.json, if only the ledger was available: the device in each slot
  diagnostics/      runs.json, the newest first, with tests, faults and figures; run-NNN.txt, what
                    its program printed; checks.json
  recovery/         what the recovery unit decided and why, one JSON object a line
  metrics.txt       one scrape in the Prometheus text format
  config.toml       the configuration, without comments and without what may be a secret
  versions.json     vitald, its libraries, kernel, drivers, distribution
  service.txt       the state of the service, from systemd
  vitald.log        its own log; kernel.log: the newest messages of the kernel, of all programs
                    that caused one
  flight/           only on request: dumps of PyTorch's flight recorder (dumps.json) and errors of
                    torchelastic (errors.json) that a job left
  ledger/           only on request: the ledger as it is (SQLite)

An event marked `simulated` belongs to a drill. `untrusted`, or USER SPACE in kernel.log: a process
wrote the line, perhaps a forged one.

What is private in it: host names, names of users and jobs, process names, paths, serial numbers
and UUIDs of devices, addresses on the network. Of the configuration, whatever is named like a
secret or looks like one was removed, here and in all other parts but ledger/. Evidence is left as
it is: a secret that a program printed to a log, and that is not in the configuration, may be here.
"""
