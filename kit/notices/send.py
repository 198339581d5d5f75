"""Sends a notice through apprise (https://github.com/caronc/apprise). A URL is a secret: no error and no log shows one."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from kit.errors import ConfigError, Fault, ToolError
from kit.schema.notify import Event

# For all endpoints of one notice together; they are asked at the same time.
PATIENCE_S = 20.0
_HIDDEN = "***"
# In what apprise logs, an answer's code; and an endpoint that was not reached.
_CODE = re.compile(r"\berror=(\d{3})\b")
_UNREACHED = re.compile(r"\b[Cc]onnection error\b")


def require_apprise() -> Any:
    """The module apprise; ToolError if it is not installed."""
    try:
        import apprise
    except ImportError:
        problem = "notices go through apprise, which is not installed"
        raise ToolError(problem, hint="pip install 'slurm-kit[notify]'") from None
    # Its messages name hosts and parts of URLs, so only a reason in the kit's own words leaves this module.
    logger = logging.getLogger("apprise")
    logger.propagate = False
    if not any(isinstance(handler, _Reasons) for handler in logger.handlers):
        logger.addHandler(_Reasons())
    return apprise


class _Reasons(logging.Handler):
    """Thread -> why its last notice was not accepted. Each endpoint has its thread."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.of: dict[int | None, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if code := _CODE.search(said):
            self.of[record.thread] = f"it answered with {code[1]}"
        elif _UNREACHED.search(said):
            self.of[record.thread] = "it was not reached"


def _reason() -> str:
    """Why this thread's notice was not accepted."""
    known = next((one for one in logging.getLogger("apprise").handlers if isinstance(one, _Reasons)), None)
    return known.of.pop(threading.get_ident(), "") if known else ""


def check(urls: Mapping[str, str], *, file: str) -> None:
    """ConfigError, without the value, for a URL that apprise does not know. urls: variable name -> URL."""
    faults = [
        Fault(
            file=file,
            key="notify.to",
            problem=f"the value of {name} is not a URL that apprise knows",
            hint="https://github.com/caronc/apprise/wiki lists them",
        )
        for name, url in urls.items()
        if _endpoint(url) is None
    ]
    if faults:
        raise ConfigError.of(*faults)


def _endpoint(url: str) -> Any:
    apprise = require_apprise()
    # It keeps nothing on disk, loads no plugins of others, and expands nothing in a text.
    asset = apprise.AppriseAsset(
        app_id="kit", app_desc="kit", storage_mode=apprise.PersistentStoreMode.MEMORY, interpret_escapes=False
    )
    return apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)


def send(
    urls: Mapping[str, str],
    event: Event,
    title: str,
    body: str,
    *,
    hide: Sequence[str] = (),
    patience: float = PATIENCE_S,
) -> dict[str, str]:
    """Send a notice. Return for each endpoint, by the name of its variable, why it was not told; empty if it accepted.

    An endpoint's error is not raised. hide: secret values that the text must not contain.
    """
    for value in sorted([*urls.values(), *hide], key=len, reverse=True):
        if len(value) > 3:
            title, body = title.replace(value, _HIDDEN), body.replace(value, _HIDDEN)
    kind = {"start": "info", "fail": "failure", "stall": "warning", "end": "success"}[event]
    took = dict.fromkeys(urls, f"it did not answer within {patience:.0f} s")

    def tell(name: str, url: str) -> None:
        # A plugin may raise anything; it is the endpoint's fault then, and not the run's.
        try:
            if (endpoint := _endpoint(url)) is None:
                took[name] = "its URL is none that apprise knows"
            else:
                _reason()  # of an earlier thread with this number
                accepted = endpoint.notify(title=title, body=body, notify_type=kind)
                took[name] = "" if accepted else _reason() or "it did not accept the notice"
        except Exception as error:  # noqa: BLE001
            took[name] = f"apprise failed with {type(error).__name__}"

    # An endpoint that answers byte by byte would hold the caller for as long as it likes; a daemon thread it may hold.
    threads = [threading.Thread(target=tell, args=pair, daemon=True) for pair in urls.items()]
    for one in threads:
        one.start()
    for one in threads:
        one.join(max(0.0, patience))
    return dict(took)
