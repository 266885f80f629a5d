"""The records of a zip archive of ``torch.save``, read no further than the file has bytes."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

from spiritlevel.inputs.weights.safe_pickle import in_words, shown
from spiritlevel.values.errors import SpiritlevelError

# The longest of torch's records that are not a pickle or a storage: a version number, a byte order.
LONGEST_NOTE = 64
_CHUNK = 1 << 20
# What zipfile raises on bytes that are not as they should be.
ZIP_DAMAGE = (
    zipfile.BadZipFile,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    OverflowError,
    MemoryError,
    struct.error,
)


class ArchiveRecords:
    """The records of an archive, which together have no more bytes than the file."""

    def __init__(self, archive: zipfile.ZipFile, path: Path, size: int) -> None:
        self.archive, self.path, self.size = archive, path, size
        self.names = set(archive.namelist())
        # A directory may point at the same bytes under any number of names.
        self.left = size
        if len(self.names) < len(archive.infolist()):
            raise SpiritlevelError(f"{path} has two records of one name, so it is damaged; copy or save it again")

    def forget_absent_checksums(self, name: str) -> None:
        """Leave checksums out where none were written: torch can do so, and then even its smallest record fails."""
        if name not in self.names:
            return
        try:
            self.read(name, LONGEST_NOTE)
        except SpiritlevelError:
            for info in self.archive.infolist():
                # zipfile compares no checksum where there is none.
                info.CRC = None  # type: ignore[assignment]

    def read(self, name: str, most: int | None = None) -> bytearray:
        """Return the bytes of one record."""
        path = self.path
        try:
            info = self.archive.getinfo(name)
            # torch.save stores without compression; a compressed record may claim any size.
            if info.compress_type != zipfile.ZIP_STORED:
                raise SpiritlevelError(f"{path} has been compressed; save it again with torch.save")
            if info.file_size > (self.size if most is None else most):
                raise EOFError(f"record {name} says it has {info.file_size} bytes")
            self.left -= info.file_size
            if self.left < 0:
                raise EOFError("its records have more bytes together than the file")
            content = bytearray(info.file_size)
            with self.archive.open(info) as stream:
                for start in range(0, len(content), _CHUNK):
                    piece = stream.read(min(_CHUNK, len(content) - start))
                    if len(piece) < min(_CHUNK, len(content) - start):
                        raise EOFError(f"record {name} is shorter than it says")
                    content[start : start + len(piece)] = piece
                if stream.read(1):
                    raise EOFError(f"record {name} is longer than it says")
            return content
        except KeyError:
            raise SpiritlevelError(
                f"{path} has no record {shown(name)}, so it is damaged; copy or save it again"
            ) from None
        except ZIP_DAMAGE as error:
            raise SpiritlevelError(f"{path} is damaged ({in_words(error)}); copy or save it again") from error
