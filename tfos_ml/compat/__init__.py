"""The modules of TensorFlowOnSpark 2.2.5, under their names and with their arguments, over tfos_ml.

A program written for TensorFlowOnSpark runs after its imports have been changed::

    from tensorflowonspark import TFCluster, TFNode          # before
    from tfos_ml.compat import TFCluster, TFNode             # after

=================  ========================================================================
``TFCluster``      ``run``, ``InputMode``, and the cluster that it returns
``TFNode``         ``DataFeed``, ``hdfs_path`` and the rest, for map functions
``TFParallel``     independent instances of a program
``pipeline``       ``TFEstimator``, ``TFModel``, ``Namespace``, their Params
``dfutil``         DataFrames from and to TFRecords
``compat``         ``export_saved_model`` and what else differs between versions of TensorFlow
``TFSparkNode``    ``TFNodeContext``, what a map function gets as ``ctx``
``gpu_info``, ``util``, ``marker``, ``TFManager``, ``reservation``
                   what programs use of them
=================  ========================================================================

``docs/howto/migrate_tensorflowonspark.rst`` lists what differs. Errors are those of :mod:`tfos_ml.errors`, and no call
ends the program, stops its SparkContext or installs signal handlers.
"""
