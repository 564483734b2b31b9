"""NVML: what the driver says of its GPUs. `source` judges what to ask and when; `worker` is the
process that asks.
"""
