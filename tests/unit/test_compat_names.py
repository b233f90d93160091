"""``tfos_ml.compat`` has TensorFlowOnSpark's names and arguments, as docs/howto/migrate_tensorflowonspark.rst says."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from tfos_ml import errors

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "migrate_tensorflowonspark.rst"
STATUS = re.compile(r"different: .+|removed: .+")

# Public names of TensorFlowOnSpark 2.2.5, with arguments and defaults, as its wheel has them.
THEIRS = """
TFCluster.tf_status
TFCluster.InputMode
TFCluster.InputMode.TENSORFLOW
TFCluster.InputMode.SPARK
TFCluster.TFCluster
TFCluster.TFCluster.sc
TFCluster.TFCluster.defaultFS
TFCluster.TFCluster.working_dir
TFCluster.TFCluster.num_executors
TFCluster.TFCluster.nodeRDD
TFCluster.TFCluster.cluster_id
TFCluster.TFCluster.cluster_info
TFCluster.TFCluster.cluster_meta
TFCluster.TFCluster.input_mode
TFCluster.TFCluster.queues
TFCluster.TFCluster.server
TFCluster.TFCluster.train(dataRDD, num_epochs=0, feed_timeout=600, qname='input')
TFCluster.TFCluster.inference(dataRDD, feed_timeout=600, qname='input')
TFCluster.TFCluster.shutdown(ssc=None, grace_secs=0, timeout=259200)
TFCluster.TFCluster.tensorboard_url()
TFCluster.TFCluster.meta
TFCluster.run(sc, map_fun, tf_args, num_executors, num_ps, tensorboard=False, input_mode=InputMode.TENSORFLOW,
    log_dir=None, driver_ps_nodes=False, master_node=None, reservation_timeout=600, queues=['input', 'output',
    'error'], eval_node=False, release_port=True)
TFNode.hdfs_path(ctx, path)
TFNode.start_cluster_server(ctx, num_gpus=1, rdma=False)
TFNode.next_batch(mgr, batch_size, qname='input')
TFNode.export_saved_model(sess, export_dir, tag_set, signatures)
TFNode.release_port(ctx)
TFNode.batch_results(mgr, results, qname='output')
TFNode.terminate(mgr, qname='input')
TFNode.DataFeed(mgr, train_mode=True, qname_in='input', qname_out='output', input_mapping=None)
TFNode.DataFeed.next_batch(batch_size)
TFNode.DataFeed.should_stop()
TFNode.DataFeed.batch_results(results)
TFNode.DataFeed.terminate()
TFNode.DataFeed.mgr
TFNode.DataFeed.train_mode
TFNode.DataFeed.qname_in
TFNode.DataFeed.qname_out
TFNode.DataFeed.done_feeding
TFNode.DataFeed.input_tensors
TFNode.DataFeed.queue_in
TFNode.DataFeed.queue_out
TFNode.TF_VERSION
TFSparkNode.TFNodeContext(executor_id=0, job_name='', task_index=0, cluster_spec={}, defaultFS='file://',
    working_dir='.', mgr=None, tmp_socket=None)
TFSparkNode.TFNodeContext.absolute_path(path)
TFSparkNode.TFNodeContext.start_cluster_server(num_gpus=1, rdma=False)
TFSparkNode.TFNodeContext.export_saved_model(sess, export_dir, tag_set, signatures)
TFSparkNode.TFNodeContext.get_data_feed(train_mode=True, qname_in='input', qname_out='output', input_mapping=None)
TFSparkNode.TFNodeContext.release_port()
TFSparkNode.TFNodeContext.worker_num
TFSparkNode.TFNodeContext.executor_id
TFSparkNode.TFNodeContext.job_name
TFSparkNode.TFNodeContext.task_index
TFSparkNode.TFNodeContext.cluster_spec
TFSparkNode.TFNodeContext.num_workers
TFSparkNode.TFNodeContext.defaultFS
TFSparkNode.TFNodeContext.working_dir
TFSparkNode.TFNodeContext.mgr
TFSparkNode.TFNodeContext.tmp_socket
TFSparkNode.TFSparkNode
TFSparkNode.TFSparkNode.mgr
TFSparkNode.TFSparkNode.cluster_id
TFSparkNode.run(fn, tf_args, cluster_meta, tensorboard, log_dir, queues, background)
TFSparkNode.train(cluster_info, cluster_meta, feed_timeout=600, qname='input')
TFSparkNode.inference(cluster_info, feed_timeout=600, qname='input')
TFSparkNode.shutdown(cluster_info, grace_secs=0, queues=['input'])
TFSparkNode.TF_VERSION
TFParallel.run(sc, map_fn, tf_args, num_executors, use_barrier=True)
pipeline.TFTypeConverters
pipeline.TFTypeConverters.toDict(value)
pipeline.HasBatchSize()
pipeline.HasBatchSize.batch_size
pipeline.HasBatchSize.setBatchSize(value)
pipeline.HasBatchSize.getBatchSize()
pipeline.HasClusterSize()
pipeline.HasClusterSize.cluster_size
pipeline.HasClusterSize.setClusterSize(value)
pipeline.HasClusterSize.getClusterSize()
pipeline.HasEpochs()
pipeline.HasEpochs.epochs
pipeline.HasEpochs.setEpochs(value)
pipeline.HasEpochs.getEpochs()
pipeline.HasGraceSecs()
pipeline.HasGraceSecs.grace_secs
pipeline.HasGraceSecs.setGraceSecs(value)
pipeline.HasGraceSecs.getGraceSecs()
pipeline.HasInputMapping()
pipeline.HasInputMapping.input_mapping
pipeline.HasInputMapping.setInputMapping(value)
pipeline.HasInputMapping.getInputMapping()
pipeline.HasInputMode()
pipeline.HasInputMode.input_mode
pipeline.HasInputMode.setInputMode(value)
pipeline.HasInputMode.getInputMode()
pipeline.HasMasterNode()
pipeline.HasMasterNode.master_node
pipeline.HasMasterNode.setMasterNode(value)
pipeline.HasMasterNode.getMasterNode()
pipeline.HasModelDir()
pipeline.HasModelDir.model_dir
pipeline.HasModelDir.setModelDir(value)
pipeline.HasModelDir.getModelDir()
pipeline.HasNumPS()
pipeline.HasNumPS.num_ps
pipeline.HasNumPS.driver_ps_nodes
pipeline.HasNumPS.setNumPS(value)
pipeline.HasNumPS.getNumPS()
pipeline.HasNumPS.setDriverPSNodes(value)
pipeline.HasNumPS.getDriverPSNodes()
pipeline.HasOutputMapping()
pipeline.HasOutputMapping.output_mapping
pipeline.HasOutputMapping.setOutputMapping(value)
pipeline.HasOutputMapping.getOutputMapping()
pipeline.HasProtocol()
pipeline.HasProtocol.protocol
pipeline.HasProtocol.setProtocol(value)
pipeline.HasProtocol.getProtocol()
pipeline.HasReaders()
pipeline.HasReaders.readers
pipeline.HasReaders.setReaders(value)
pipeline.HasReaders.getReaders()
pipeline.HasSteps()
pipeline.HasSteps.steps
pipeline.HasSteps.setSteps(value)
pipeline.HasSteps.getSteps()
pipeline.HasTensorboard()
pipeline.HasTensorboard.tensorboard
pipeline.HasTensorboard.setTensorboard(value)
pipeline.HasTensorboard.getTensorboard()
pipeline.HasTFRecordDir()
pipeline.HasTFRecordDir.tfrecord_dir
pipeline.HasTFRecordDir.setTFRecordDir(value)
pipeline.HasTFRecordDir.getTFRecordDir()
pipeline.HasExportDir()
pipeline.HasExportDir.export_dir
pipeline.HasExportDir.setExportDir(value)
pipeline.HasExportDir.getExportDir()
pipeline.HasSignatureDefKey()
pipeline.HasSignatureDefKey.signature_def_key
pipeline.HasSignatureDefKey.setSignatureDefKey(value)
pipeline.HasSignatureDefKey.getSignatureDefKey()
pipeline.HasTagSet()
pipeline.HasTagSet.tag_set
pipeline.HasTagSet.setTagSet(value)
pipeline.HasTagSet.getTagSet()
pipeline.Namespace(d)
pipeline.Namespace.argv
pipeline.TFParams
pipeline.TFParams.args
pipeline.TFParams.merge_args_params()
pipeline.TFEstimator(train_fn, tf_args, export_fn=None)
pipeline.TFEstimator.train_fn
pipeline.TFEstimator.export_fn
pipeline.TFModel(tf_args)
pipeline.pred_fn
pipeline.global_sess
pipeline.global_args
pipeline.global_model
pipeline.single_node_env(args)
pipeline.get_meta_graph_def(saved_model_dir, tag_set)
pipeline.yield_batch(iterable, batch_size, num_tensors=1)
pipeline.TF_VERSION
dfutil.loadedDF
dfutil.isLoadedDF(df)
dfutil.saveAsTFRecords(df, output_dir)
dfutil.loadTFRecords(sc, input_dir, binary_features=[])
dfutil.toTFExample(dtypes)
dfutil.infer_schema(example, binary_features=[])
dfutil.fromTFExample(iter, binary_features=[])
compat.export_saved_model(model, export_dir, is_chief=False)
compat.disable_auto_shard(options)
compat.is_gpu_available()
gpu_info.MAX_RETRIES
gpu_info.AS_STRING
gpu_info.AS_LIST
gpu_info.is_gpu_available()
gpu_info.get_gpus(num_gpu=1, worker_index=-1, format=AS_STRING)
util.single_node_env(num_gpus=1, worker_index=-1, nodes=[])
util.get_ip_address()
util.find_in_path(path, file)
util.write_executor_id(num)
util.read_executor_id()
marker.Marker
marker.EndPartition
TFManager.TFManager
TFManager.mgr
TFManager.qdict
TFManager.kdict
TFManager.start(authkey, queues, mode='local')
TFManager.connect(address, authkey)
reservation.TFOS_SERVER_PORT
reservation.TFOS_SERVER_HOST
reservation.BUFSIZE
reservation.MAX_RETRIES
reservation.Reservations(required)
reservation.Reservations.add(meta)
reservation.Reservations.done()
reservation.Reservations.get()
reservation.Reservations.remaining()
reservation.MessageSocket
reservation.MessageSocket.receive(sock)
reservation.MessageSocket.send(sock, msg)
reservation.Server(count)
reservation.Server.reservations
reservation.Server.done
reservation.Server.await_reservations(sc, status={}, timeout=600)
reservation.Server.start()
reservation.Server.get_server_ip()
reservation.Server.get_server_ports()
reservation.Server.start_listening_socket()
reservation.Server.stop()
reservation.Client(server_addr)
reservation.Client.sock
reservation.Client.server_addr
reservation.Client.close()
reservation.Client.register(reservation)
reservation.Client.get_reservations()
reservation.Client.await_reservations()
reservation.Client.request_stop()
tensorflowonspark.__version__
"""


def recorded() -> dict[str, list[tuple[str, str | None]] | None]:
    """Arguments of each name, None for what is no function and has no constructor of its own."""
    found = {}
    for line in re.sub("\n +", " ", THEIRS).split("\n")[1:-1]:
        name, opened, rest = line.partition("(")
        found[name] = arguments(rest[:-1]) if opened else None
    return found


def arguments(text: str) -> list[tuple[str, str | None]]:
    """Names and defaults."""
    given = ast.parse(f"def f({text}): pass").body[0].args
    defaults = [None] * (len(given.args) - len(given.defaults)) + list(map(ast.unparse, given.defaults))
    return [(argument.arg, default) for argument, default in zip(given.args, defaults, strict=True)]


def documented() -> dict[str, str]:
    """What the page says of each name and argument that it lists."""
    found: dict[str, str] = {}
    module = name = ""
    lines = PAGE.read_text().split("Differences\n-----------\n", 1)[1].splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if following and set(following) == {"~"}:
            module = line
        elif module and line.startswith("``"):
            short, text = re.fullmatch(r"``(.+?)`` +(.+)", line).groups()
            name = f"{module}.{short}"
            assert name not in found, name
            found[name] = text
        elif line.startswith("  ") and name:
            found[name] += f" {line.strip()}"
    return found


def ours(name: str):
    module, *path = name.split(".")
    value = importlib.import_module(f"tfos_ml.compat.{module}")
    for part in path:
        value = getattr(value, part)
    return value


def plain(default: str | None) -> object:
    """Defaults that mean the same as one value."""
    names = {"InputMode.TENSORFLOW": 0, "AS_STRING": "string"}
    value = names[default] if default in names else None if default is None else ast.literal_eval(default)
    return list(value) if isinstance(value, (tuple, list, dict)) and value else value or None


NAMES, LISTED = recorded(), documented()


def is_removed(name: str) -> bool:
    """Whether the page lists it, or what it is an attribute or argument of, as removed."""
    parents = [name[: match.start()] for match in re.finditer(r"[.(]", name)]
    return any(LISTED.get(listed, "").startswith("removed") for listed in [name, *parents])


def test_the_page_lists_names_that_are_there_in_tensorflowonspark():
    known = {*NAMES, *(f"{name}({argument}=)" for name, args in NAMES.items() for argument, _ in args or ())}
    assert LISTED.keys() - known == set()
    assert [name for name, text in LISTED.items() if not STATUS.fullmatch(text)] == []


@pytest.mark.parametrize("name", [name for name in NAMES if not is_removed(name)])
def test_what_is_not_removed_is_there(name):
    args = NAMES[name]
    if args is None:
        owner, _, attribute = name.rpartition(".")
        holder = ours(owner)
        made_by_constructor = inspect.isclass(holder) and f"self.{attribute}" in inspect.getsource(holder)
        assert made_by_constructor or hasattr(holder, attribute)
        return
    found = ours(name)
    parameters = [p for p in inspect.signature(found).parameters.values() if p.name != "self"]
    wanted = [argument for argument, _ in args if not is_removed(f"{name}({argument}=)")]
    assert [p.name for p in parameters[: len(wanted)]] == wanted
    assert all(p.default is not p.empty for p in parameters[len(wanted) :])
    for parameter, (argument, default) in zip(parameters, args, strict=False):
        if f"{name}({argument}=)" not in LISTED:
            given = None if parameter.default is parameter.empty else repr(parameter.default)
            assert (parameter.default is parameter.empty) == (default is None), argument
            assert plain(given) == plain(default), argument


@pytest.mark.parametrize("name", [name for name in NAMES if is_removed(name)])
def test_what_is_removed_is_not_there_or_says_what_to_use(name):
    try:
        found = ours(name)
    except (AttributeError, ImportError):
        return
    with pytest.raises(errors.RemovedError, match=r"[Uu]se|tells|ctx\."):
        found(*[None] * len(NAMES[name]))
