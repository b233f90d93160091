"""What runs inside the TensorFlow process of a node."""
