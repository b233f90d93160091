"""The project's settings are in setup.cfg."""

from setuptools import setup

setup()
