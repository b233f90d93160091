"""The project's settings are in setup.cfg; links of the README lead to the repository wherever it is read."""

import configparser
import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent


def readme() -> str:
    """README.rst with absolute links, as an index page needs them."""
    settings = configparser.ConfigParser()
    settings.read(HERE / "setup.cfg")
    url = settings["metadata"]["url"]
    text = (HERE / "README.rst").read_text(encoding="utf-8")
    text = re.sub(r"<(?!\w+:)([\w./-]+)>`_", rf"<{url}/blob/main/\1>`_", text)
    return re.sub(r"^(\.\. image:: )(?!\w+:)", rf"\1{url}/raw/main/", text, flags=re.MULTILINE)


setup(long_description=readme(), long_description_content_type="text/x-rst")
