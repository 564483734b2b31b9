"""
The job socket: where the jobs of a node report their own progress (docs/jobs.md).

    packets, pages  ──►  rank  ──►  job  ──►  telemetry  ──►  events, notices, metrics
    what is claimed      judged without a clock        stored, then shown

What a job reports is its own claim: it is shown, and never changes a finding.
"""
