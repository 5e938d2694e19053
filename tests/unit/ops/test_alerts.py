from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from pydantic import ValidationError

from daybreak.config import Alerts
from daybreak.ops.alerts import Alert, send

ALERT = Alert("nightly", "r1", "2026-11-30", "refused", 3, "2 of 10 rows are dead letters", "2026-11-30T06:00:00+00:00")


@dataclass
class Webhook:
    """A real endpoint on a free port: answers with ``codes`` in turn, then with 200."""

    url: str = ""
    codes: list[int] = field(default_factory=list)
    got: list[Any] = field(default_factory=list)


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hook.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(hook.codes.pop(0) if hook.codes else 200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        hook.url = f"http://127.0.0.1:{server.server_port}/hook?token=secret"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield hook
        server.shutdown()
        thread.join()


def test_an_alert_is_json_with_a_sentence(webhook: Webhook) -> None:
    assert send(Alerts(url=webhook.url), ALERT) is None
    [got] = webhook.got
    assert (got["job"], got["run_id"], got["status"], got["exit_code"]) == ("nightly", "r1", "refused", 3)
    assert got["text"] == "Daybreak: job nightly, run r1 refused (exit 3): 2 of 10 rows are dead letters"


def test_a_stumbling_endpoint_is_tried_again(webhook: Webhook) -> None:
    webhook.codes, waits = [500, 503], []
    assert send(Alerts(url=webhook.url), ALERT, sleep=waits.append) is None
    assert (len(webhook.got), waits) == (3, [2.0, 4.0])


def test_case_39_an_endpoint_that_fails_is_told_and_raises_nothing(webhook: Webhook) -> None:
    webhook.codes = [500] * 9
    why = send(Alerts(url=webhook.url), ALERT, sleep=lambda _: None)
    assert "HTTP Error 500" in str(why)
    assert len(webhook.got) == 3
    assert "refused" in str(send(Alerts(url="http://127.0.0.1:9/"), ALERT, sleep=lambda _: None)).lower()


def test_without_a_webhook_nothing_is_sent() -> None:
    assert send(Alerts(), ALERT) is None


def test_the_address_is_a_secret_and_a_web_address(webhook: Webhook) -> None:
    assert "secret" not in Alerts(url=webhook.url).model_dump_json()
    assert "secret" not in repr(Alerts(url=webhook.url))
    with pytest.raises(ValidationError, match="begins with http:// or https://"):
        Alerts(url="ftp://somewhere")
