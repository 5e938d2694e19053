"""One message to a webhook when a night's run has not published. An alert that cannot be sent changes no outcome."""

from __future__ import annotations

import json
import logging
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass

from daybreak.config import Alerts
from daybreak.errors import text

log = logging.getLogger(__name__)

_ATTEMPTS, _SECONDS = 3, 10


@dataclass(frozen=True)
class Alert:
    """What the webhook gets, as a JSON object, with ``text`` beside it: the same as a sentence."""

    job: str
    run_id: str | None
    window: str | None
    status: str
    exit_code: int
    error: str
    at: str

    @property
    def text(self) -> str:
        run = f", run {self.run_id}" if self.run_id else ""
        return f"Daybreak: job {self.job}{run} {self.status} (exit {self.exit_code}): {self.error}"


def send(alerts: Alerts, alert: Alert, *, sleep: Callable[[float], None] = time.sleep) -> str | None:
    """Post the alert, if the job has a webhook. Returns why it could not be delivered, or None; never raises."""
    if alerts.url is None:
        return None
    body = json.dumps({**asdict(alert), "text": alert.text}).encode()
    request = urllib.request.Request(
        alerts.url.get_secret_value(), data=body, headers={"Content-Type": "application/json"}, method="POST"
    )
    why = ""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS):
                return None
        except Exception as error:  # whatever the network does: the run's own outcome stands
            why = f"{type(error).__name__}: {text(error)}"
        if attempt < _ATTEMPTS:
            sleep(2.0**attempt)
    log.warning("job %s, run %s: the alert was not delivered in %d tries: %s", alert.job, alert.run_id, _ATTEMPTS, why)
    return why
