"""
NCCL RAS: what the processes of a job say of its collective operations, asked once a job seems to
make no progress.

`protocol` asks, `document` reads the answer, `comparison` says what two equal answers mean.

A query makes the job gather data from all its processes, and any local user can listen on the port.
So a job is asked only on suspicion, only by the node of its rank 0, rarely, and its words count as
the job's.
"""
