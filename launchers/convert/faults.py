"""What stops a conversion, in words for the user."""


class Refused(Exception):  # noqa: N818 - it says what happened, as the message does
    """The checkpoint, or what was asked of it, cannot be. hint: what to try."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint
