"""Words of other agents for what vitald finds, which the repair controllers of EKS, GKE and
SageMaker HyperPod read. Each table names the source of its words.
"""
