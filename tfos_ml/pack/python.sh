#!/bin/sh
# Runs Python @PYTHON@, of this archive or of this host, with the packages of this archive.
# Written by python -m tfos_ml pack.
fail() { echo "$0: packed for $1" >&2; exit 1; }
root=$(cd "$(dirname "$0")/.." && pwd -P) || exit 1
if [ -n "@MACHINE@" ] && [ "$(uname -m)" != "@MACHINE@" ]; then
  fail "@MACHINE@, and $(hostname) is $(uname -m)"
fi
if [ -n "@GLIBC@" ]; then
  libc=$(getconf GNU_LIBC_VERSION 2>/dev/null)
  minor=${libc#glibc 2.}
  [ "${minor%%.*}" -ge "@GLIBC@" ] 2>/dev/null || fail "glibc 2.@GLIBC@ or newer, and $(hostname) has ${libc:-none}"
fi
# What Spark and the user name comes first, and what is installed on this host last.
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$root/site-packages" PYTHONNOUSERSITE=1
if [ -x "$root/python/bin/python@PYTHON@" ]; then
  export LD_LIBRARY_PATH="$root/python/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  exec "$root/python/bin/python@PYTHON@" "$@"
fi
for python in python@PYTHON@ python3 python; do
  found=$(command -v "$python") || continue
  [ "$found" -ef "$0" ] && continue
  if "$found" -S -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "@PYTHON@")' 2>/dev/null; then
    exec "$found" "$@"
  fi
done
fail "Python @PYTHON@, and $(hostname) has none on PATH=$PATH; --with-python packs one"
