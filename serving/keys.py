"""The keys that open a server: given when it starts, or in a file that may change while it runs."""

import hmac
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from sysone_jax.errors import InputError

log = logging.getLogger("sysone.server")


class Keys:
    """Keys in force. Where there are none at all, everyone may enter.

    Args:
        given: keys that do not change.
        file: a key on each line; empty lines and lines that begin with ``#`` say nothing. It is read again when it
            changes, so that keys rotate without a restart; while it cannot be read, the keys read before stay.

    Raises:
        InputError: the file cannot be read, or holds no key.
    """

    def __init__(self, given: Sequence[str] = (), file: Path | None = None) -> None:
        self._given = tuple(key.encode() for key in given)
        self._file = file
        self._seen: tuple[int, int, int] | None = None
        self._read: tuple[bytes, ...] = ()
        if file is not None:
            try:
                self._seen, self._read = _version(file), _keys(file)
            except OSError as error:
                raise InputError(f"--api-key-file {file}: {(error.strerror or str(error)).lower()}") from None
            if not self._read:
                raise InputError(f"--api-key-file {file}: holds no key; write one on each line")

    @property
    def needed(self) -> bool:
        return self._file is not None or bool(self._given)

    def match(self, offered: Sequence[bytes]) -> bytes | None:
        """The key among ``offered`` that opens, or None.

        All are compared, each in constant time, so that the time says nothing about which was close.
        """
        self._refresh()
        found = None
        for one in offered:
            for key in (*self._given, *self._read):
                if hmac.compare_digest(one, key):
                    found = key
        return found

    def _refresh(self) -> None:
        if self._file is None:
            return
        try:
            version = _version(self._file)
            if version == self._seen:
                return
            keys = _keys(self._file)
        except OSError as error:
            if self._seen is not None:
                log.error("--api-key-file %s: %s; the keys read before stay in force", self._file, error.strerror)
                self._seen = None
            return
        if not keys:
            log.error("--api-key-file %s: holds no key; the keys read before stay in force", self._file)
        self._seen, self._read = version, keys or self._read


def _version(file: Path) -> tuple[int, int, int]:
    status = os.stat(file)
    return status.st_mtime_ns, status.st_size, status.st_ino


def _keys(file: Path) -> tuple[bytes, ...]:
    lines = [line.strip() for line in file.read_bytes().splitlines()]
    return tuple(line for line in lines if line and not line.startswith(b"#"))
