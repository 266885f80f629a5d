"""Finding a data set's files under the data roots and proving that they are the published ones."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from spiritlevel.values.errors import SpiritlevelError

ENVIRONMENT = "SPIRITLEVEL_DATA"
ARCHIVES = (".tar", ".tar.gz", ".tar.xz", ".tgz")


def cache_folder() -> Path:
    """Return the folder that fetched data sets are kept in.

    Returns
    -------
    Path
        ``spiritlevel`` in the folder of ``XDG_CACHE_HOME``, or in ``~/.cache``.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> sl.datasets.cache_folder().name
    'spiritlevel'
    """
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "spiritlevel"


def data_roots(root: Path | None) -> list[Path]:
    """Return the folders to search: the one given, or else the environment's and then the cache."""
    if root is not None:
        return [root]
    named = os.environ.get(ENVIRONMENT)
    return [*([Path(named)] if named else []), cache_folder()]


def read_plain_or_gzipped(roots: Sequence[Path], relative: str) -> tuple[bytes, Path, bool] | None:
    """Return (unpacked bytes as stored or decompressed, where, whether gzipped) of the first such file, or None."""
    for root in roots:
        for path in (root / relative, root / f"{relative}.gz"):
            if path.is_file():
                return _read(path), path, path.suffix == ".gz"
    return None


def read_from_folder_or_archive(
    roots: Sequence[Path], folder: str, file: str, archives: Sequence[str]
) -> tuple[bytes, str] | None:
    """Return (bytes, where) of folder/file, read from the folder or in memory from an archive of it, or None."""
    for root in roots:
        path = root / folder / file
        if path.is_file():
            return _read(path), str(path)
        for archive in (root / f"{stem}{suffix}" for stem in archives for suffix in ARCHIVES):
            if archive.is_file():
                content = _member(archive, f"{folder}/{file}")
                if content is not None:
                    return content, f"{file} in {archive}"
    return None


def check_md5(content: bytes, where: str | Path, expected: str) -> None:
    """Stop unless the bytes have the published checksum."""
    found = md5(content)
    if found != expected:
        raise SpiritlevelError(
            f"{where} has md5 {found} where the published file has {expected}: it is damaged or another file, "
            "so remove it and fetch it again."
        )


def md5(content: bytes) -> str:
    """Return the md5 sum of some bytes; it guards against damage, not against intent."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def unzip(content: bytes, where: str | Path) -> bytes:
    """Return gzipped bytes decompressed."""
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise SpiritlevelError(f"{where} cannot be decompressed ({error}): fetch it again.") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SpiritlevelError(f"{path} cannot be read ({error.strerror or error}).") from error


def _member(archive: Path, name: str) -> bytes | None:
    try:
        with tarfile.open(archive) as tar:
            # One pass from the front: a compressed archive cannot be sought, and the rest need not be decompressed.
            for entry in tar:
                if entry.isfile() and entry.name.removeprefix("./") == name:
                    stream = tar.extractfile(entry)
                    return None if stream is None else stream.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise SpiritlevelError(f"{archive} cannot be read as an archive ({error}): fetch it again.") from error
    return None
