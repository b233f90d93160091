"""``python tests/differential/record.py <python>``: run the scenarios with TensorFlowOnSpark.

Writes ``theirs.json``. The Python is of an environment with pyspark, tensorflow, tf-keras, pandas<3, pyarrow,
setuptools<80, packaging, and ``pip install --no-deps tensorflowonspark==2.2.5``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
VERSIONS = """
import importlib.metadata, json
print(json.dumps({name: importlib.metadata.version(name) for name in ("tensorflowonspark", "pyspark", "tensorflow")}))
"""


def main(python: str) -> None:
    """Run them, and keep what they found."""
    with tempfile.TemporaryDirectory() as directory:
        command = [python, str(HERE / "scenarios.py"), "tensorflowonspark", directory]
        environment = {**os.environ, "PYSPARK_PYTHON": python, "PYTHONPATH": str(HERE)}
        subprocess.run(command, check=True, timeout=900, cwd=directory, env=environment)
        found = json.loads(Path(directory, "found.json").read_text())
    versions = json.loads(subprocess.run([python, "-c", VERSIONS], check=True, capture_output=True).stdout)
    record = json.dumps({"versions": versions, "found": found}, indent=1, sort_keys=True)
    (HERE / "theirs.json").write_text(record + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
