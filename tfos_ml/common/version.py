"""The version of tfos_ml."""

__version__ = "0.1.0"
