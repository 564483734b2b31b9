"""
What stands between a verdict and a reboot. The daemon asks, with a file; `vitald recover`, as root,
decides and acts.

    daemon (server/recovery_requester.py) --request.json--> vitald-recover.path --> vitald recover:
    facts -> decision -> action

Pure: `request` (what is asked for), `book` (what was done), `decision`. With hands: `files`,
`programs`, `cluster`. Nothing here trusts the daemon with more than a question: how often something
is done is root's own book.
"""
