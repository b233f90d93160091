"""A store with the S3 API on the loopback interface, moto's, which can be told to fail."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow.fs as fs

ACCESS_KEY, SECRET_KEY = "AKIATESTOFSTORES", "wJalr/Secret+Key99"
BUCKET = "bucket"
REFUSALS = {
    403: b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>",
    503: b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>",
}


class ObjectStore:
    """moto's server, and a filesystem of pyarrow's that knows its keys."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer  # not where the lowest versions are tested, which have no such tests

        self._moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._moto.start()
        self.endpoint = f"http://127.0.0.1:{self._moto.get_host_and_port()[1]}"
        server: Any = self._moto._server
        self._app, server.app = server.app, self._answer
        self._lock = threading.Lock()
        self._rule: Callable[[str, str], bool] = lambda method, path: False
        self._status = 0
        self.requests: list[tuple[str, str]] = []  # methods and paths
        self.keys: set[str] = set()  # that requests were signed with
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")).close()
        self.files = fs.S3FileSystem(
            access_key=ACCESS_KEY, secret_key=SECRET_KEY, endpoint_override=self.endpoint, region="us-east-1"
        )

    def close(self) -> None:
        """Stop the server."""
        self._moto.stop()

    def fail(self, rule: Callable[[str, str], bool], status: int) -> None:
        """Answer requests of a method to a path, of which the rule is true, with an error from now on."""
        self._rule, self._status = rule, status

    def heal(self) -> None:
        """Answer all requests again."""
        self._rule = lambda method, path: False

    def names(self, directory: str) -> list[str]:
        """Files below a directory of the bucket, by their path in it."""
        root = f"{BUCKET}/{directory}"
        found = self.files.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
        return sorted(info.path.removeprefix(f"{root}/") for info in found if info.type == fs.FileType.File)

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        key = re.search(r"Credential=([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
        with self._lock:
            self.requests.append((method, path))
            self.keys |= {key[1]} if key else set()
        if not self._rule(method, path):  # which may take its time
            return self._app(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response(f"{self._status} Refused", [("Content-Type", "application/xml")])
        return [b"" if method == "HEAD" else REFUSALS[self._status]]
