"""`vitald nvhcd`: the node health service that NVIDIA's ft_launcher asks before a rendezvous."""
