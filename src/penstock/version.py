"""The version of the package: what is built, and what `penstock --version` says."""

__all__ = ["__version__"]

# Not asked of importlib.metadata, which takes as long to import as all else that `penstock --help` needs.
__version__ = "0.1.0"
