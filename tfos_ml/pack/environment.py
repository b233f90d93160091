"""Finds what goes into an archive: distributions, as they are installed here or as pip installs them anew.

The files of a distribution are those that its RECORD lists, so that what is installed beside it is not packed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import tfos_ml
from tfos_ml.errors import PackedEnvironmentError

OURS = "tfos_ml"
SPARKS = {"pyspark", "pyspark-client", "pyspark-connect", "py4j"}  # of the version of the executors' jars
SAME_AS_DRIVER = ("tensorflow", "keras")
INSTEAD = {"tensorflow-cpu": "tensorflow"}
_ANEW = "--fresh has pip install it anew into the archive"


def installed(lines: Iterable[str], extras: Iterable[str]) -> list[metadata.Distribution]:
    """What tfos_ml with some extras and further requirements have installed here, and what these need in turn.

    Raises ``PackedEnvironmentError`` if something is not installed, or cannot be told from what is installed beside it.
    """
    found: dict[str, metadata.Distribution] = {}
    seen: set[str] = set()
    left = [*map(Requirement, lines), *_of_ours(extras)]
    while left:
        wanted = left.pop()
        name = canonicalize_name(wanted.name)
        if name in SPARKS or name == canonicalize_name(OURS) or str(wanted) in seen:
            continue
        seen.add(str(wanted))
        one = _distribution(name)
        if one is None or not wanted.specifier.contains(one.version, prereleases=True):
            has = "is not installed" if one is None else f"is installed as {one.version}"
            raise PackedEnvironmentError(
                f"{wanted.name}{wanted.specifier} is to be packed, and {wanted.name} {has} here. Install it, or have "
                "it installed anew with --fresh."
            )
        found[canonicalize_name(one.name)] = one
        left += [need for need in map(Requirement, one.requires or []) if _applies(need, wanted.extras)]
    for one in found.values():
        _check_files(one)
    return list(found.values())


def _of_ours(extras: Iterable[str]) -> list[Requirement]:
    """What tfos_ml and some of its extras require."""
    known = set(metadata.distribution(OURS).metadata.get_all("Provides-Extra") or [])
    unknown = set(extras) - known
    if unknown:
        raise PackedEnvironmentError(
            f"tfos_ml has no extra {', '.join(sorted(unknown))}; expected some of {', '.join(sorted(known))}."
        )
    needs = [need for need in map(Requirement, metadata.requires(OURS) or []) if _applies(need, extras)]
    nested = {extra for need in needs if need.name == OURS for extra in need.extras} - set(extras)
    return _of_ours({*extras, *nested}) if nested else [need for need in needs if need.name != OURS]


def _applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ["", *extras])


def _distribution(name: str) -> metadata.Distribution | None:
    for candidate in (name, *(other for other, replaced in INSTEAD.items() if replaced == name)):
        try:
            return metadata.distribution(candidate)
        except metadata.PackageNotFoundError:
            pass
    return None


def _check_files(one: metadata.Distribution) -> None:
    """Refuse what has not been installed from a wheel: conda's libraries lie elsewhere, Debian lists no files."""
    installer = (one.read_text("INSTALLER") or "").strip()
    origin = json.loads(one.read_text("direct_url.json") or "{}")
    if installer == "conda" or not one.files:
        by = f"by {installer or 'another program than pip'}"
        raise PackedEnvironmentError(f"{one.name} was installed {by}, and cannot be packed as it is; {_ANEW}.")
    if origin.get("dir_info", {}).get("editable"):
        raise PackedEnvironmentError(
            f"{one.name} is installed in editable mode. Install it without -e, or leave it out and send it with "
            "spark.submit.pyFiles."
        )


def fresh(lines: Iterable[str], extras: Iterable[str], python: str, directory: Path) -> list[metadata.Distribution]:
    """What pip installs into a directory, for an interpreter: tfos_ml's needs, and what `lines` name.

    TensorFlow and Keras are of the version that is installed here, unless `lines` name another: nodes that differ from
    the driver are refused. Raises ``PackedEnvironmentError``, with what pip says, if it fails.
    """
    named = list(map(Requirement, lines))
    names = {canonicalize_name(one.name) for one in named}
    taken = {*names, *(INSTEAD.get(name, "") for name in names), *SPARKS}
    wanted = [one for one in _of_ours(extras) if canonicalize_name(one.name) not in taken]
    for one in [*named, *wanted]:
        package = INSTEAD.get(one.name, one.name)
        here = _distribution(package) if package in SAME_AS_DRIVER else None
        if here is not None and not (one in named and one.specifier):
            one.specifier = SpecifierSet(f"=={here.version}")
    for one in wanted:
        one.marker = None
    arguments = ["install", "--quiet", "--disable-pip-version-check", "--no-compile", "--target", str(directory)]
    command = [sys.executable, "-m", "pip", "--python", python, *arguments, *map(str, [*named, *wanted])]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise PackedEnvironmentError(f"pip could not install the packages for {python}:\n{done.stdout[-2000:]}")
    found = metadata.distributions(path=[str(directory)])
    return [one for one in found if canonicalize_name(one.name) not in {*SPARKS, canonicalize_name(OURS)}]


def files_of(distributions: Iterable[metadata.Distribution]) -> Iterator[tuple[str, Path, str]]:
    """Files by their names in site-packages, and the distribution of each; tfos_ml as it is imported here."""
    package = Path(tfos_ml.__file__).parent
    for file in sorted(package.rglob("*")):
        if file.is_file():
            yield f"{OURS}/{file.relative_to(package).as_posix()}", file, OURS
    ours = metadata.distribution(OURS)
    for listed in ours.files or []:
        if listed.name in ("METADATA", "entry_points.txt") and ".dist-info" in str(listed):
            yield f"{OURS}-{ours.version}.dist-info/{listed.name}", Path(str(listed.locate())), OURS
    for one in distributions:
        for listed in one.files or []:
            if listed.parts[0] != ".." and not listed.is_absolute():
                yield listed.as_posix(), Path(str(listed.locate())), one.name
