"""Finds keys, logins and tokens in what a run takes with it, by the names of files and by what is in them.

The job's own secrets are known by value (secret.py). This module finds those that nobody named: files that a workspace took along,
and values in the job. It knows the usual ones only, so finding none is no proof.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kit.schema.job import Job

_FOLDERS = frozenset({".ssh", ".aws", ".gnupg", ".docker", ".kube", ".azure"})
_NAMES = frozenset({".env", ".netrc", "_netrc", ".git-credentials", ".pypirc", ".pgpass", ".my.cnf", ".s3cfg", ".boto"})
_KEY_NAME = re.compile(r"id_(rsa|dsa|ecdsa|ed25519)(_sk)?|\.env\.(?!example$|sample$|template$|dist$).+")
# The marks that the issuers give to their tokens for such searches; the first is of private keys in PEM (RFC 7468, OpenSSH).
_CONTENT = re.compile(
    rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY(?: BLOCK)?-----|\bAKIA[0-9A-Z]{16}\b|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{36}"
    rb"|\bgithub_pat_[A-Za-z0-9_]{40}|\bglpat-[A-Za-z0-9_-]{20}|\bxox[abprs]-[A-Za-z0-9-]{20}|\baws_secret_access_key\s*="
    rb'|"auths"\s*:\s*\{\s*"'
)
# No mark above is longer. A search in parts keeps this many bytes of the part before.
LONGEST = 128
_VARIABLE = re.compile(r"(?:.*_)?(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY)", re.IGNORECASE)
_VALUE = re.compile(r"[A-Za-z0-9_+/=.:@-]{12,}")


def is_private_name(path: str) -> bool:
    """Whether a file of this relative path is usually a key or a login."""
    parts = PurePosixPath(path).parts
    if not parts or parts[-1].endswith(".pub"):
        return False
    inside = not _FOLDERS.isdisjoint(parts[:-1]) and parts[-1] not in {"config", "known_hosts"}
    return inside or parts[-1] in _NAMES or _KEY_NAME.fullmatch(parts[-1]) is not None


def has_private_content(content: bytes) -> bool:
    """Whether a token or a private key is in these bytes."""
    return _CONTENT.search(content) is not None


def private_values(job: Job) -> Iterator[tuple[str, str]]:
    """The job's keys whose values look like secrets, each with the name of the variable that would keep it; no value is given."""
    for name, value in job.env.items():
        if (_VARIABLE.fullmatch(name) and _VALUE.fullmatch(value)) or has_private_content(value.encode()):
            yield f"env.{name}", name
    for place, word in enumerate(job.args):
        if has_private_content(word.encode()):
            yield f"args[{place}]", "TOKEN"
