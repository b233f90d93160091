"""The code that runs inside the TensorFlow process of a node."""
