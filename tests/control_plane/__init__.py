"""A real Kubernetes control plane for tests: how it is built, started and asked."""
