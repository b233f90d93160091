"""A progress bar as HTML, with learning curves below it: a notebook keeps it as it ended, and needs no widgets."""

from __future__ import annotations

import sys
from html import escape
from typing import Any

from tqdm import tqdm

_STYLE = "font-family: monospace; white-space: pre-wrap"


def is_notebook() -> bool:
    """Whether this process is a kernel of Jupyter."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


class NotebookBar(tqdm):  # type: ignore[type-arg]  # generic in its stubs alone
    """The bar of tqdm as one display, which is updated; ``curves`` is the HTML below it."""

    def __init__(self, total: int, bar_format: str):
        self.curves = ""
        self._display: Any = None
        super().__init__(total=total, bar_format=bar_format, gui=True)  # draws nothing by itself

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        from IPython.display import display

        text = str(self)
        shown = {"text/html": f'<div style="{_STYLE}">{escape(text)}</div>{self.curves}', "text/plain": text}
        if self._display is None:
            self._display = display(shown, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._display.update(shown, raw=True)

    def clear(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is in the way of lines beside it."""
