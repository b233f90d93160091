import base64
import inspect
import os
import pickle

import pytest
from msgspec import structs

from tfos_ml import errors
from tfos_ml.protocol.failure import Failure, NodeFailure, find_failure
from tfos_ml.protocol.transport import MAX_MESSAGE_BYTES

TREE = {
    name: cls
    for name, cls in vars(errors).items()
    if inspect.isclass(cls) and cls.__module__ == errors.__name__ and issubclass(cls, Exception)
}
DETAILS = {
    "role": "worker",
    "index": 2,
    "host": "host-7",
    "traceback": 'Traceback:\n  File "é.py"\nValueError: 🎉',
    "log_tail": "line 1\nline 2\n",
    "exit_code": 3,
    "signal": None,
}
FAILURE = Failure(errors.TrainFnError, "the train function raised ValueError: 🎉\n<&>", **DETAILS, collateral=True)


def test_texts_of_any_length_fit_into_a_message_to_the_driver():
    noise = base64.b64encode(os.urandom(9 << 20)).decode()
    failure = structs.replace(FAILURE, message=f"it broke {noise}", traceback=noise, log_tail=noise).cut()
    assert len(str(NodeFailure(failure))) < MAX_MESSAGE_BYTES
    assert failure.message.startswith("it broke")
    assert "characters left out" in failure.message
    assert FAILURE.cut() == FAILURE


@pytest.mark.parametrize(
    "noise",
    [
        "org.apache.spark.SparkException: Job aborted\n\tat Foo\n{}\n\n\tat java.lang.Thread.run(Thread.java:840)",
        "<tfos_ml> tfos_ml: < {}{} <tfos_ml:",
    ],
    ids=["in a stack trace", "twice"],
)
def test_failure_is_found_inside_noise(noise):
    assert find_failure(noise.replace("{}", FAILURE.encode())) == FAILURE


def test_every_error_is_rebuilt_and_survives_pickling():
    for kind in TREE.values():
        error = Failure(kind, "it broke", **DETAILS).to_error()
        assert type(error) is kind
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (kind, str(error))
        if issubclass(kind, errors.NodeError):
            assert vars(copy) == vars(error) == {"message": "it broke", "is_collateral": False, **DETAILS}
        else:
            assert str(error) == "worker:2 on host-7: it broke"
