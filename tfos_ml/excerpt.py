"""What a person needs of long texts: messages, tracebacks and output, cut to a few lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

MESSAGE_LINES, TRACEBACK_LINES, OUTPUT_LINES = 8, 8, 5
LINE_CHARACTERS = 500
CUT = "..."
_FRAME = re.compile(r'^ +File "([^"]*)", line \d+')
_LIBRARY = re.compile(r"/(site-packages|dist-packages|tfos_ml|python3(\.\d+)?)/|^<frozen")
_CLASS_LINE = re.compile(r"^[\w.]+:\Z", re.MULTILINE)
_UNDERLINE = re.compile(r"^[\s^~]+$")
_GRAPH_TRACE = re.compile(r"^Detected at node .*most recent call last\):$")
_GRAPH_NODE = re.compile(r"^\s*\[\[\{\{(function_)?node |^<stack traces unavailable>$|^Graph execution error:$")


def excerpt(text: str, lines: int) -> str:
    """The first and last lines of a text, at most `lines`; long lines are shortened."""
    cut_lines = [line if len(line) <= LINE_CHARACTERS else line[:LINE_CHARACTERS] + CUT for line in text.splitlines()]
    if len(cut_lines) <= lines:
        return "\n".join(cut_lines)
    last = (lines - 1) // 2
    return "\n".join([*cut_lines[: lines - 1 - last], CUT, *cut_lines[len(cut_lines) - last :]])


def message_excerpt(message: str) -> str:
    """A message without the frames of libraries that TensorFlow adds when a graph fails."""
    if _FRAME.search("\n".join(message.splitlines()[1:])) is None and "{{node" not in message:
        kept = message.splitlines()
    else:
        noise = (_GRAPH_TRACE, _GRAPH_NODE)
        lines = (line for line in message.splitlines() if line.strip() and not any(p.search(line) for p in noise))
        kept = [line for line in lines if not _is_library([line])]
    return excerpt("\n".join(kept), MESSAGE_LINES)


def traceback_excerpt(traceback: str, message: str = "") -> str:
    """The user's own frames of a printed traceback.

    Parameters
    ----------
    traceback : str
        As Python prints it.
    message : str
        What has been told before: the line at the end that says it again is left out.
    """
    said = message.split(" raised ", 1)[-1].strip()
    traceback = traceback.rstrip()
    if said and traceback.endswith(said):
        traceback = _CLASS_LINE.sub("", traceback.removesuffix(said).rstrip())
    blocks = list(_blocks(traceback.rstrip().splitlines()))
    own = [block for block in blocks if not _is_library(block)]
    if not any(_FRAME.match(block[0]) for block in own) and any(_FRAME.match(block[0]) for block in blocks):
        return ""  # nothing in it is the user's
    lines = [line for block in own for line in block if not _UNDERLINE.match(line)]
    return excerpt("\n".join(lines), TRACEBACK_LINES)


def output_excerpt(output: str) -> str:
    """The last lines of a process's output."""
    lines = output.rstrip().splitlines()[-OUTPUT_LINES:]
    return excerpt("\n".join(lines), OUTPUT_LINES)


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """A traceback's frames, each with its source lines, and what stands between them."""
    block: list[str] = []
    for line in lines:
        begins_frame = _FRAME.match(line) is not None
        ends_frame = bool(block) and _FRAME.match(block[0]) is not None and not line.startswith("    ")
        if block and (begins_frame or ends_frame):
            yield block
            block = []
        block.append(line)
    if block:
        yield block


def _is_library(block: list[str]) -> bool:
    match = _FRAME.match(block[0])
    return match is not None and _LIBRARY.search(match[1]) is not None
