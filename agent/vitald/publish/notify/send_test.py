"""A test notification, sent as a real one is, and what came back: for `vitald notify test`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from vitald.publish.notify.alertmanager import AlertmanagerSink
from vitald.publish.notify.body_formats import FORMATS, encode_json
from vitald.publish.notify.exec import MAX_RUN_S, ExecReceiver, check_result
from vitald.publish.notify.http_post import HttpAnswer, check_answer
from vitald.publish.notify.notification import (
    UNKNOWN_FLAGS,
    NodeIdentity,
    Notification,
    NotificationKind,
)
from vitald.publish.notify.receiver import NotificationRefused
from vitald.publish.notify.webhook import WebhookReceiver
from vitald.publish.sink import SinkFailed
from vitald.publish_sections import NotifySettings
from vitald.text import limit_bytes

_MAX_ANSWER = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTest:
    """`to`: a server or a program. `status`: of HTTP or of the program; None without an answer.
    `answer`: what the receiver wrote, one printable line. `error`: why it was not delivered, ""
    if it was; `is_final`: vitald would not try again.
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
    repeat.
    """
    return Notification(
        kind=NotificationKind.TEST,
        key=f"{node.host}/test",
        id=uuid.uuid4().hex,
        time=now,
        node=node,
        flags=UNKNOWN_FLAGS,  # the daemon is not asked: it may be what is wrong
    )


async def send_test(settings: NotifySettings, node: NodeIdentity) -> list[SentTest]:
    """One result for each address. Raises SecretUnusable where a file is wrong."""
    if settings.type == "alertmanager":
        return await _test_alertmanager(settings, node)
    notification = build_test(node, time.time())
    if settings.type == "exec":
        return [await _test_program(settings, notification)]
    return [await _test_webhook(settings, notification)]


async def _test_webhook(settings: NotifySettings, notification: Notification) -> SentTest:
    receiver = WebhookReceiver(settings)
    request = receiver.build_request(notification, time.time())
    begun = time.monotonic()
    try:
        answer: HttpAnswer | SinkFailed = await receiver.send(request)
    except SinkFailed as error:
        answer = error
    return _judge_answer(request.poster.server, request.shown, answer, time.monotonic() - begun)


async def _test_alertmanager(settings: NotifySettings, node: NodeIdentity) -> list[SentTest]:
    begun = time.monotonic()
    results = await AlertmanagerSink(settings, node.host).send_test(time.time())
    seconds = time.monotonic() - begun
    return [_judge_answer(to, body, answer, seconds) for to, body, answer in results]


def _judge_answer(
    to: str, sent: bytes, answer: HttpAnswer | SinkFailed, seconds: float
) -> SentTest:
    if isinstance(answer, SinkFailed):
        return SentTest(to=to, sent=sent, seconds=seconds, error=str(answer))
    error, is_final = _explain_failure(partial(check_answer, to, answer))
    return SentTest(
        to=to,
        sent=sent,
        seconds=seconds,
        status=answer.status,
        answer=limit_bytes(answer.text, _MAX_ANSWER),
        error=error,
        is_final=is_final,
    )


async def _test_program(settings: NotifySettings, notification: Notification) -> SentTest:
    program = settings.command[0]
    sent = encode_json(FORMATS["vitald"].build(notification))
    begun = time.monotonic()
    try:
        result = await ExecReceiver(settings.name, settings.command).run_program(notification)
    except SinkFailed as error:
        return SentTest(to=program, sent=sent, seconds=0.0, error=str(error))
    seconds = time.monotonic() - begun
    failure, is_final = _explain_failure(partial(check_result, program, result, MAX_RUN_S))
    return SentTest(
        to=program,
        sent=sent,
        seconds=seconds,
        status=result.status,
        answer=limit_bytes(result.output[-_MAX_ANSWER:], _MAX_ANSWER),
        error=failure,
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
