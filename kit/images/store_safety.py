"""Finds what makes an image store unsafe to share: users who could replace an image or a folder above it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from kit.files import own_folders
from kit.images import store_notes

_FOLDERS = ("sha256", "refs", "tmp", "locks")


def problems(store: Path) -> Iterator[str]:
    """One sentence for each way in which another user could replace an image, with the command that prevents it.

    Runs check the digest anyway: a replaced image stops a run before it starts.
    """
    if not store.is_dir():
        yield f"{store}: not a folder"
        return
    for folder in store.resolve().parents:
        yield from _above(folder)
    for folder in (store, *(store / name for name in _FOLDERS)):
        if folder.is_dir():
            yield from _folder(folder)
    for path, reason in store_notes.read_notes(store).strange:
        yield f"{path}: no note of the kit ({reason}): remove it"
    for path in sorted((store / "sha256").glob("*")) if (store / "sha256").is_dir() else ():
        yield from _file(path)


def _above(folder: Path) -> Iterator[str]:
    if owner := own_folders.stranger(folder):
        yield f"{folder}: belongs to {owner}, who can exchange the store"
    elif who := own_folders.replaceable_by(folder):
        yield f"{folder}: {who} may write it, and so exchange the store: 'chmod go-w' or 'chmod +t' it"


def _folder(folder: Path) -> Iterator[str]:
    status = folder.stat()
    if owner := own_folders.stranger(folder):
        # The sticky bit holds for all users but the folder's owner.
        yield f"{folder}: belongs to {owner}, who can replace every image in it: let root or a shared account own it"
    who = "everybody" if status.st_mode & stat.S_IWOTH else "its group" if status.st_mode & stat.S_IWGRP else ""
    if who and not status.st_mode & stat.S_ISVTX:
        mode = stat.S_IMODE(status.st_mode)
        yield f"{folder}: mode {mode:o}: {who} may replace other users' images: 'chmod {mode | stat.S_ISVTX:o} {folder}'"


def _file(path: Path) -> Iterator[str]:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        yield f"{path}: not a regular file: remove it"
    elif (owner := own_folders.stranger(path)) and not own_folders.is_unchangeable(path):
        yield f"{path}: belongs to {owner}, who can change it while a run has it mounted: let root own it, or use image.stage"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield f"{path}: mode {stat.S_IMODE(status.st_mode):o}: others may write it: 'chmod go-w {path}'"
