"""TFRecords as a data source of Spark, without TensorFlow."""
