"""Table [notify]: events of a run, and who is notified."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kit.schema.schema_base import EnvName, Model
from kit.schema.wrong_value_messages import Invalid

Event = Literal["start", "fail", "stall", "end"]


class Notify(Model):
    """Notifications by mail, Slack, Teams, a webhook, ntfy, or any other service of apprise. Each event is sent at most once."""

    on: tuple[Event, ...] = Field(
        default=(),
        description="Events to report. start: the job began for the first time. fail: the run ended with an exit code "
        "other than 0. stall: ranks are stalled. end: the run ended, with any exit code.",
    )
    to: tuple[EnvName, ...] = Field(
        default=(),
        description="Names of variables, each with one apprise URL such as mailtos://… . The kit reads the variables from "
        "the environment or from secrets.file, and treats the URLs as secrets.",
        examples=["TEAM_SLACK"],
    )
    by: Annotated[
        Literal["watch", "batch"],
        Field(
            description="watch: `kit watch` sends the notices, from the machine on which you start it. batch: the batch script "
            "sends them; its node must reach the services, and must see the Python that ran `kit submit`."
        ),
    ] = "watch"

    @model_validator(mode="after")
    def _somebody(self) -> Notify:
        if self.on and not self.to:
            problem = "no notice can be sent: name the variables that hold the URLs"
            raise Invalid(problem, key=("to",), write=("TEAM_SLACK",))
        return self
