"""Long messages and tracebacks, cut to what a person needs of them."""

from tfos_ml import errors
from tfos_ml.excerpt import traceback_excerpt

KERAS = "/usr/lib/python3.11/site-packages/keras/src/"
GRAPH_FRAMES = "".join(f'  File "{KERAS}trainer.py", line {n}, in step\n\n' for n in range(30))
GRAPH_ERROR = (
    "the train function raised InvalidArgumentError: Graph execution error:\n\nDetected at node cond/loss/Sparse "
    f"defined at (most recent call last):\n{GRAPH_FRAMES}"
    "Received a label value of 6 which is outside the valid range of [0, 3).\n"
    "\t [[{{node cond/loss/Sparse}}]] [Op:__inference_7]"
)
DEEP = (
    "Traceback (most recent call last):\n"
    '  File "/home/me/train.py", line 7, in train_fn\n    model.fit(data)\n    ^^^^^^^^^^^^^^^\n'
    + "".join(f'  File "{KERAS}utils.py", line {n}, in call\n    return call()\n' for n in range(40))
    + "ValueError: no such shape"
)


def test_traceback_that_ends_with_the_whole_message_does_not_say_it_again():
    summary = GRAPH_ERROR.split(" raised ")[1]
    frame = '  File "/home/me/train.py", line 7, in train_fn\n    model.fit(data)\n'
    traceback = f"Traceback (most recent call last):\n{frame}{summary}"
    assert traceback_excerpt(traceback, GRAPH_ERROR).splitlines() == traceback.splitlines()[:3]
    library = traceback.replace("/home/me/", KERAS)
    assert traceback_excerpt(library, GRAPH_ERROR) == ""


def test_error_of_a_node_is_short_and_its_details_are_whole():
    output = "".join(f"line {n}\n" for n in range(40))
    error = errors.TrainFnError(GRAPH_ERROR, role="worker", index=1, host="h", traceback=DEEP, log_tail=output)
    shown = str(error)
    assert len(shown.splitlines()) <= 18
    assert "Received a label value of 6" in shown
    assert "in train_fn\n    model.fit(data)\n" in shown
    assert "utils.py" not in shown
    assert "line 39" in shown
    assert "(error.details has " in shown
    for whole in (GRAPH_ERROR, DEEP, output.strip()):
        assert whole in error.details
