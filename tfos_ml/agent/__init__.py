"""One node, seen from its Spark task: the supervisor of its TensorFlow process."""
