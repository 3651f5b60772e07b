"""Files that are created whole, or not at all, and only once: the compare-and-swap of a shared file system."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

DRAFT: Final = ".draft-"
"""How the names of unfinished files begin; the writer's name follows, up to the next hyphen."""


def put_if_absent(file: Path, text: str, writer: str) -> bool:
    """Create a file with its whole content, unless it exists; by a hard link, which is atomic, also on NFS.

    Args:
        file: the file; its folder is made when it is missing.
        text: its content.
        writer: part of the name of the draft, by which its owner is known when a crash leaves it behind.

    Returns:
        Whether it was created.

    Raises:
        OSError: the folder cannot be written, or its file system does not support hard links.
    """
    draft = file.with_name(f"{DRAFT}{writer}-{secrets.token_hex(8)}")
    try:
        _write(draft, text)
        os.link(draft, file)
        return True
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):  # the first failure is the one to report; the draft's owner sweeps it
            draft.unlink(missing_ok=True)


def replace(file: Path, text: str, writer: str) -> None:
    """Replace a file as a whole.

    Args:
        file: the file; its folder is made when it is missing.
        text: its content.
        writer: as in `put_if_absent`.

    Raises:
        OSError: the folder cannot be written.
    """
    draft = file.with_name(f"{DRAFT}{writer}-{secrets.token_hex(8)}")
    try:
        _write(draft, text)
        draft.replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def writer_of(name: str) -> str | None:
    """The writer of a draft; None for a file that is not one."""
    return name.removeprefix(DRAFT).split("-")[0] if name.startswith(DRAFT) else None


def _write(draft: Path, text: str) -> None:
    try:
        draft.write_text(text, encoding="utf-8")
    except FileNotFoundError:
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
