"""Table [notify]: events of a run, and who is notified."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kit.spec.schema_base import EnvName, Model
from kit.spec.wrong_value_messages import Invalid

Event = Literal["start", "fail", "stall", "end"]


class Notify(Model):
    """Notices by mail, Slack, Teams, a webhook, ntfy, or any other service of apprise. Each event is sent at most once."""

    on: tuple[Event, ...] = Field(
        default=(),
        description="start: the first ranks' job began. fail: it ended, and not with 0. stall: ranks stand still. "
        "end: it ended, however.",
    )
    to: tuple[EnvName, ...] = Field(
        default=(),
        description="Names of variables that hold an apprise URL each, such as mailtos://… ; taken from the environment or from "
        "secrets.file, and kept as secrets are.",
        examples=["TEAM_SLACK"],
    )
    by: Annotated[
        Literal["watch", "batch"],
        Field(
            description="watch: `kit watch` sends, wherever you start it. batch: the batch script does, where the first node may "
            "reach out and sees the kit's Python."
        ),
    ] = "watch"

    @model_validator(mode="after")
    def _somebody(self) -> Notify:
        if self.on and not self.to:
            problem = "no notice can be sent: name the variables that hold the URLs"
            raise Invalid(problem, key=("to",), write=("TEAM_SLACK",))
        return self
