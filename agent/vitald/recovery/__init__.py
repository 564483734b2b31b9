"""
What happens between a verdict and a reboot. The daemon requests an action, with a file; `vitald
recovery run`, as root, decides and acts.

    daemon (`requester`) --request.json--> vitald-recover.path --> vitald recovery run:
    facts -> decision -> action

Without side effects: `recovery_request` (what is requested), `action_log` (what was done),
`decision`. With side effects: `files`, `inputs`, `programs`, the schedulers (`cluster`,
`slurm_cluster`, `kubernetes`), `brake`, `decision_log`, `attempt`. The daemon is trusted with the
request alone: rate limits are computed from root's own action log, and the brake queries others.
"""
