"""The Kubernetes sink: conditions, labels, an annotation, events and a taint of the own node."""
