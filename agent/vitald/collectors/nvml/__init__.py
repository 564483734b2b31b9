"""GPUs through NVML. `collector` polls a worker process, which alone calls the driver."""
