"""What processes do that the tests of the fork server start; see ``unit/test_forkserver.py``."""

import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
import threading


def main(arguments):
    return globals()[arguments[1]](*arguments[2:])


def descriptors():
    """What the process has open."""
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the directory's own
            yield os.readlink(f"/proc/self/fd/{number}")


def tell(*names):
    """What a process knows of itself, as a line of JSON."""
    known = {
        "arguments": sys.argv[2:],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "path": sys.path,
        "main": sys.modules["__main__"].__name__,
        "temporary": tempfile.gettempdir(),
        "input": sys.stdin.read(),
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
        "affinity": sorted(os.sched_getaffinity(0)),
        "descriptors": sorted(descriptors()),
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT)],
        "threads": threading.active_count(),
    }
    print(json.dumps({name: known[name] for name in names}))


def end(code):
    return int(code)


def wait():
    print("waits", flush=True)
    signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
