"""A test notification, sent as a real one is, and what came back: for `vitald notify test`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from vitald.publish.notify import alertmanager
from vitald.publish.notify.exec import MAX_RUN_S, ExecReceiver, check_result
from vitald.publish.notify.formats import FORMATS, encode_json
from vitald.publish.notify.http_post import HttpPoster, check_answer
from vitald.publish.notify.notification import (
    WELL,
    NodeIdentity,
    Notification,
    NotificationKind,
    build_notification,
)
from vitald.publish.notify.receiver import NotificationRefused
from vitald.publish.notify.settings import NotifySettings
from vitald.publish.notify.webhook import WebhookReceiver
from vitald.publish.sink import SinkFailed
from vitald.text import limit_bytes

_MAX_ANSWER = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTest:
    """`to`: a server or a program. `sent`: the body, without secrets. `status`: of HTTP or of the
    program; None without an answer. `answer`: what the receiver wrote, one printable line. `error`:
    why it was not delivered, "" if it was; `is_final`: vitald would not try again.
    """

    to: str
    sent: bytes
    seconds: float
    status: int | None = None
    answer: str = ""
    error: str = ""
    is_final: bool = False


def build_test(node: NodeIdentity, now: float) -> Notification:
    """`now`: seconds since the epoch. Each has an id of its own, so that none is taken for a
    repeat. The daemon is not needed: it may be what is wrong.
    """
    kind, occasion = NotificationKind.TEST, uuid.uuid4().hex
    return build_notification(kind, now, node, WELL, subject="test", occasion=occasion)


async def send_test(
    name: str, settings: NotifySettings, node: NodeIdentity, now: float
) -> list[SentTest]:
    """One result for each address. Raises SecretUnusable where a file is wrong."""
    if settings.type == "alertmanager":
        body = encode_json(alertmanager.build_test(node.host, now))
        headers = alertmanager.build_headers(settings.headers_file)
        posters = alertmanager.build_posters(settings)
        return [await _post_test(poster, body, headers, body) for poster in posters]
    notification = build_test(node, now)
    if settings.type == "exec":
        return [await _run_program(name, settings, notification)]
    request = WebhookReceiver(settings).build_request(notification, now)
    return [await _post_test(request.poster, request.body, request.headers, request.shown)]


async def _post_test(
    poster: HttpPoster, body: bytes, headers: dict[str, str], shown: bytes
) -> SentTest:
    begun = time.monotonic()
    try:
        answer = await poster.send(body, headers)
    except SinkFailed as failed:
        return SentTest(to=poster.server, sent=shown, seconds=0.0, error=str(failed))
    error, is_final = _explain_failure(partial(check_answer, poster.server, answer))
    return SentTest(
        to=poster.server,
        sent=shown,
        seconds=time.monotonic() - begun,
        status=answer.status,
        answer=limit_bytes(answer.text, _MAX_ANSWER),
        error=error,
        is_final=is_final,
    )


async def _run_program(name: str, settings: NotifySettings, notification: Notification) -> SentTest:
    program = settings.command[0]
    sent = encode_json(FORMATS["vitald"].build(notification))
    begun = time.monotonic()
    try:
        result = await ExecReceiver(name, settings.command).run_program(notification)
    except SinkFailed as failed:
        return SentTest(to=program, sent=sent, seconds=0.0, error=str(failed))
    error, is_final = _explain_failure(partial(check_result, program, result, MAX_RUN_S))
    return SentTest(
        to=program,
        sent=sent,
        seconds=time.monotonic() - begun,
        status=result.status,
        answer=limit_bytes(result.output[-_MAX_ANSWER:], _MAX_ANSWER),
        error=error,
        is_final=is_final,
    )


def _explain_failure(check: Callable[[], None]) -> tuple[str, bool]:
    """Why the check of what came back fails, "" if it passes, and whether that is final."""
    try:
        check()
    except SinkFailed as failed:
        return str(failed), False
    except NotificationRefused as refused:
        return str(refused), True
    return "", False
