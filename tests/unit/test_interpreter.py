import importlib
import subprocess

import cloudpickle
import pytest
from node_tasks import make_start

from tfos_ml.agent.child_process import ChildProcess, child_environment
from tfos_ml.common.interpreter import module_command, search_path
from tfos_ml.protocol.channel import Channel
from tfos_ml.protocol.node_task import NodeSettings

DEADLINE = 30.0
PLANTED = ("json.py", "socket.py", "runpy.py", "psutil.py", "pyarrow.py", "numpy.py", "tfos_ml/__init__.py")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working directory, first on the path as it is in Spark's Python workers; others have put files into it."""
    tmp_path.joinpath("tfos_ml").mkdir()
    for name in PLANTED:
        (tmp_path / name).write_text(
            f"open({str(tmp_path / 'RUN')!r}, 'a').write({name!r} + ' '); raise SystemExit(99)"
        )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_processes_of_ours_run_nothing_of_the_working_directory(here):
    command = module_command("tfos_ml.agent.standalone_supervisor")
    done = subprocess.run(
        command, env=child_environment("m", 1, {}), stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE
    )
    ran = here / "RUN"
    assert not ran.exists(), ran.read_text()
    assert b"ModuleNotFoundError" not in done.stderr


def test_child_imports_what_lies_in_the_working_directory_for_the_user(tmp_path, monkeypatch):
    """As a module beside the script of a local session."""
    (tmp_path / "beside_me.py").write_text("print('imported', flush=True)\ndef train_fn(args, ctx): pass")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    function = importlib.import_module("beside_me").train_fn
    payload = tmp_path / "payload"
    payload.write_bytes(cloudpickle.dumps(({}, cloudpickle.dumps((function, {})))))
    assert str(tmp_path) not in search_path()
    child = ChildProcess("tfos_ml.worker.main", child_environment("m-beside", 1, {}), "worker:0")
    channel = Channel(child.socket)
    channel.send(make_start(payload=str(payload), settings=NodeSettings(release_port=False)))
    assert child.wait(DEADLINE)
    channel.close()
    assert child.log_tail() == "imported\n"


def test_search_path_keeps_a_working_directory_that_pythonpath_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"/elsewhere:{tmp_path}")
    assert str(tmp_path) in search_path()
