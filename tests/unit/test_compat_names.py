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

# Public names of TensorFlowOnSpark 2.2.5 by module or class, with arguments and defaults, as its wheel has them.
THEIRS = """
TFCluster: tf_status; InputMode; TFCluster; run(sc, map_fun, tf_args, num_executors, num_ps, tensorboard=False,
    input_mode=InputMode.TENSORFLOW, log_dir=None, driver_ps_nodes=False, master_node=None, reservation_timeout=600,
    queues=['input', 'output', 'error'], eval_node=False, release_port=True)
TFCluster.InputMode: TENSORFLOW; SPARK
TFCluster.TFCluster: sc; defaultFS; working_dir; num_executors; nodeRDD; cluster_id; cluster_info; cluster_meta;
    input_mode; queues; server; train(dataRDD, num_epochs=0, feed_timeout=600, qname='input'); inference(dataRDD,
    feed_timeout=600, qname='input'); shutdown(ssc=None, grace_secs=0, timeout=259200); tensorboard_url(); meta
TFNode: hdfs_path(ctx, path); start_cluster_server(ctx, num_gpus=1, rdma=False); next_batch(mgr, batch_size,
    qname='input'); export_saved_model(sess, export_dir, tag_set, signatures); release_port(ctx); batch_results(mgr,
    results, qname='output'); terminate(mgr, qname='input'); DataFeed(mgr, train_mode=True, qname_in='input',
    qname_out='output', input_mapping=None); TF_VERSION
TFNode.DataFeed: next_batch(batch_size); should_stop(); batch_results(results); terminate(); mgr; train_mode;
    qname_in; qname_out; done_feeding; input_tensors; queue_in; queue_out
TFSparkNode: TFNodeContext(executor_id=0, job_name='', task_index=0, cluster_spec={}, defaultFS='file://',
    working_dir='.', mgr=None, tmp_socket=None); TFSparkNode; run(fn, tf_args, cluster_meta, tensorboard, log_dir,
    queues, background); train(cluster_info, cluster_meta, feed_timeout=600, qname='input'); inference(cluster_info,
    feed_timeout=600, qname='input'); shutdown(cluster_info, grace_secs=0, queues=['input']); TF_VERSION
TFSparkNode.TFNodeContext: absolute_path(path); start_cluster_server(num_gpus=1, rdma=False); export_saved_model(sess,
    export_dir, tag_set, signatures); get_data_feed(train_mode=True, qname_in='input', qname_out='output',
    input_mapping=None); release_port(); worker_num; executor_id; job_name; task_index; cluster_spec; num_workers;
    defaultFS; working_dir; mgr; tmp_socket
TFSparkNode.TFSparkNode: mgr; cluster_id
TFParallel: run(sc, map_fn, tf_args, num_executors, use_barrier=True)
pipeline: TFTypeConverters; HasBatchSize(); HasClusterSize(); HasEpochs(); HasGraceSecs(); HasInputMapping();
    HasInputMode(); HasMasterNode(); HasModelDir(); HasNumPS(); HasOutputMapping(); HasProtocol(); HasReaders();
    HasSteps(); HasTensorboard(); HasTFRecordDir(); HasExportDir(); HasSignatureDefKey(); HasTagSet(); Namespace(d);
    TFParams; TFEstimator(train_fn, tf_args, export_fn=None); TFModel(tf_args); pred_fn; global_sess; global_args;
    global_model; single_node_env(args); get_meta_graph_def(saved_model_dir, tag_set); yield_batch(iterable,
    batch_size, num_tensors=1); TF_VERSION
pipeline.TFTypeConverters: toDict(value)
pipeline.HasTFRecordDir: tfrecord_dir; setTFRecordDir(value); getTFRecordDir()
pipeline.HasNumPS: num_ps; driver_ps_nodes; setNumPS(value); getNumPS(); setDriverPSNodes(value); getDriverPSNodes()
pipeline.Namespace: argv
pipeline.TFParams: args; merge_args_params()
pipeline.TFEstimator: train_fn; export_fn
dfutil: loadedDF; isLoadedDF(df); saveAsTFRecords(df, output_dir); loadTFRecords(sc, input_dir, binary_features=[]);
    toTFExample(dtypes); infer_schema(example, binary_features=[]); fromTFExample(iter, binary_features=[])
compat: export_saved_model(model, export_dir, is_chief=False); disable_auto_shard(options); is_gpu_available()
gpu_info: MAX_RETRIES; AS_STRING; AS_LIST; is_gpu_available(); get_gpus(num_gpu=1, worker_index=-1, format=AS_STRING)
util: single_node_env(num_gpus=1, worker_index=-1, nodes=[]); get_ip_address(); find_in_path(path, file);
    write_executor_id(num); read_executor_id()
marker: Marker; EndPartition
TFManager: TFManager; mgr; qdict; kdict; start(authkey, queues, mode='local'); connect(address, authkey)
reservation: TFOS_SERVER_PORT; TFOS_SERVER_HOST; BUFSIZE; MAX_RETRIES; Reservations(required); MessageSocket;
    Server(count); Client(server_addr)
reservation.Reservations: add(meta); done(); get(); remaining()
reservation.MessageSocket: receive(sock); send(sock, msg)
reservation.Server: reservations; done; await_reservations(sc, status={}, timeout=600); start(); get_server_ip();
    get_server_ports(); start_listening_socket(); stop()
reservation.Client: sock; server_addr; close(); register(reservation); get_reservations(); await_reservations();
    request_stop()
tensorflowonspark: __version__
"""
MIXINS = """
batch_size cluster_size epochs export_dir grace_secs input_mapping input_mode master_node model_dir output_mapping
protocol readers signature_def_key steps tag_set tensorboard
"""


def mixin(param: str) -> str:
    """The line of the mixin of a Param of the pipeline."""
    name = param.title().replace("_", "")
    return f"pipeline.Has{name}: {param}; set{name}(value); get{name}()\n"


def recorded() -> dict[str, list[tuple[str, str | None]] | None]:
    """Arguments of each name, None for what is no function and has no constructor of its own."""
    found = {}
    for line in (re.sub("\n +", " ", THEIRS) + "".join(map(mixin, MIXINS.split()))).split("\n")[1:-1]:
        owner, members = line.split(": ", 1)
        for member in members.split("; "):
            name, opened, rest = member.partition("(")
            found[f"{owner}.{name}"] = arguments(rest[:-1]) if opened else None
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


def test_what_is_not_removed_is_there():
    for name, args in NAMES.items():
        if not is_removed(name):
            check_is_there(name, args)


def check_is_there(name, args):
    if args is None:
        owner, _, attribute = name.rpartition(".")
        assert hasattr(ours(owner), attribute) or attribute in set_by_methods(ours(owner)), name
        return
    found = ours(name)
    parameters = [p for p in inspect.signature(found).parameters.values() if p.name != "self"]
    wanted = [argument for argument, _ in args if not is_removed(f"{name}({argument}=)")]
    assert [p.name for p in parameters[: len(wanted)]] == wanted, name
    assert all(p.default is not p.empty for p in parameters[len(wanted) :])
    for parameter, (argument, default) in zip(parameters, args, strict=False):
        if f"{name}({argument}=)" not in LISTED:
            given = None if parameter.default is parameter.empty else repr(parameter.default)
            assert (parameter.default is parameter.empty) == (default is None), argument
            assert plain(given) == plain(default), argument


def set_by_methods(cls):
    """Names of attributes in the methods of a class, and in its annotations."""
    names = set()
    for base in cls.__mro__:
        names |= {*vars(base).get("__annotations__", {})}
        names |= {name for f in vars(base).values() if inspect.isfunction(f) for name in f.__code__.co_names}
    return names


def test_what_is_removed_is_not_there_or_says_what_to_use():
    for name in filter(is_removed, NAMES):
        try:
            found = ours(name)
        except (AttributeError, ImportError):
            continue
        with pytest.raises(errors.RemovedError, match=r"[Uu]se|tells|ctx\."):
            found(*[None] * len(NAMES[name]))
