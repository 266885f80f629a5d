"""The version, in its one place: the package, its metadata and every report take it from here."""

__version__ = "0.2.0"
