"""AWS Neuron devices: Trainium and Inferentia."""
