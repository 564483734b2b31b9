"""Notices of AWS, Azure and Google, read from a real server that answers as their documentation
says, and from one that is slow, fails, or answers with something else.
"""

from __future__ import annotations

import asyncio
import socket
import time
from email.utils import formatdate
from typing import get_args, get_type_hints

import pytest

from tests.metadata_service import (
    AWS_REBOOT,
    GCP_MAINTENANCE,
    MetadataServer,
    announce_spot,
    azure_event,
)
from tests.pace import patient
from vitald.cloud_section import CloudSettings
from vitald.model.cloud_notice import MAX_NOTICES, Effect, Provider
from vitald.publish.cloud import aws, azure, gcp
from vitald.publish.cloud.metadata import MetadataFailed, MetadataService
from vitald.publish.cloud.monitor import ProviderNotices, build_provider
from vitald.publish.cloud.notice import Notice, parse_moment, select_first
from vitald.server import schema

PROVIDERS = tuple(provider.value for provider in Provider)


def build(server: MetadataServer, imminent_s: float = 900.0) -> ProviderNotices:
    return build_provider(
        CloudSettings(provider=server.provider, endpoint=server.url, imminent_s=imminent_s)
    )


def read(server: MetadataServer, imminent_s: float = 900.0) -> list[Notice]:
    """What one round of reading gives."""
    notices = build(server, imminent_s).read_notices()
    return asyncio.run(asyncio.wait_for(notices, patient(20.0)))


def fail(server: MetadataServer) -> MetadataFailed:
    with pytest.raises(MetadataFailed) as caught:
        read(server)
    return caught.value


def http_date(seconds: float) -> str:
    return formatdate(time.time() + seconds, usegmt=True)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_nothing_is_announced(provider: str) -> None:
    with MetadataServer(provider) as server:
        assert read(server) == []
        assert len(server.asked) == {"aws": 4, "azure": 2, "gcp": 3}[provider]


def test_a_scheduled_event_of_aws() -> None:
    late = {**AWS_REBOOT, "NotBefore": http_date(86400.0), "EventId": "instance-event-1"}
    over = {**late, "State": "completed"}
    off = {**late, "State": "canceled"}
    with MetadataServer("aws") as server:
        server.answers[aws.SCHEDULED] = [AWS_REBOOT, late, over, off]
        first, second = read(server)
    assert first == Notice(
        effect=Effect.IMMINENT,
        kind="system-reboot",
        id="instance-event-0d59937288b749b32",
        not_before=1548061243.0,
        description="scheduled reboot",
    )
    assert (second.effect, second.id) == (Effect.SCHEDULED, "instance-event-1")


@pytest.mark.parametrize(
    ("action", "seconds", "effect"),
    [
        ("terminate", 120.0, Effect.IMMINENT),
        ("stop", 120.0, Effect.IMMINENT),
        ("stop", 7200.0, Effect.SCHEDULED),
        ("hibernate", 7200.0, Effect.IMMINENT),  # it begins at once
    ],
)
def test_a_spot_interruption(action: str, seconds: float, effect: Effect) -> None:
    with MetadataServer("aws") as server:
        announce_spot(server, seconds, action)
        [notice] = read(server)
    assert (notice.effect, notice.kind) == (effect, f"spot-{action}")


def test_a_rebalance_recommendation() -> None:
    with MetadataServer("aws") as server:
        server.answers[aws.REBALANCE] = {"noticeTime": "2020-10-27T08:22:00Z"}
        [notice] = read(server)
    assert notice == Notice(
        effect=Effect.REBALANCE, kind="rebalance", description="since 2020-10-27T08:22:00Z"
    )


def test_a_token_is_used_until_it_expires() -> None:
    async def work(server: MetadataServer) -> list[str]:
        provider = build(server)
        await provider.read_notices()
        await provider.read_notices()
        server.expire_token()
        await provider.read_notices()
        return [line for line in server.asked if line.startswith("PUT")]

    with MetadataServer("aws") as server:
        puts = asyncio.run(asyncio.wait_for(work(server), patient(20.0)))
        assert puts == ["PUT /latest/api/token"] * 2


@pytest.mark.parametrize(
    ("event", "effect"),
    [
        (azure_event("Reboot"), Effect.IMMINENT),
        (azure_event("Redeploy", NotBefore=http_date(3 * 86400.0)), Effect.SCHEDULED),
        (azure_event("Freeze", NotBefore=http_date(900.0)), Effect.PAUSE),
        (azure_event("Preempt", NotBefore=http_date(30.0)), Effect.IMMINENT),
        (azure_event("Terminate", NotBefore=http_date(300.0)), Effect.IMMINENT),
        (azure_event("Reboot", EventStatus="Started", NotBefore=""), Effect.IMMINENT),
        (azure_event("Freeze", EventStatus="Started", NotBefore=""), Effect.PAUSE),
        (azure_event("Reboot", Resources=["GPU-VM-0", "gpu-vm-1"]), Effect.IMMINENT),
        (azure_event("Reboot", Resources=["gpu-vm-1"]), None),  # of another VM of the set
        (azure_event("Reboot", EventStatus="Completed"), None),
    ],
)
def test_an_event_of_azure(event: dict[str, object], effect: Effect | None) -> None:
    with MetadataServer("azure") as server:
        server.answers[azure.EVENTS] = {"DocumentIncarnation": 2, "Events": [event]}
        notices = read(server)
    assert [notice.effect for notice in notices] == ([effect] if effect else [])
    if notices:
        assert notices[0].kind == event["EventType"]
        assert notices[0].description == "Host server is undergoing maintenance."


@pytest.mark.parametrize(
    ("answers", "effects"),
    [
        ({gcp.EVENT: "TERMINATE_ON_HOST_MAINTENANCE"}, [Effect.IMMINENT]),
        ({gcp.EVENT: "MIGRATE_ON_HOST_MAINTENANCE"}, [Effect.PAUSE]),
        ({gcp.PREEMPTED: "TRUE"}, [Effect.IMMINENT]),
        ({gcp.UPCOMING: GCP_MAINTENANCE}, [Effect.IMMINENT]),
        (
            {gcp.UPCOMING: {**GCP_MAINTENANCE, "window_start_time": "2999-12-01T19:00:01Z"}},
            [Effect.SCHEDULED],
        ),
        (
            {
                gcp.UPCOMING: {
                    "windowStartTime": "2999-12-01T19:00:01Z",
                    "maintenanceStatus": "ONGOING",
                    "type": "UNSCHEDULED",
                }
            },
            [Effect.IMMINENT],
        ),
        ({gcp.UPCOMING: '"NONE"'}, []),
        ({gcp.UPCOMING: {"error": "no notifications have been received yet"}}, []),
    ],
)
def test_what_google_announces(answers: dict[str, object], effects: list[Effect]) -> None:
    with MetadataServer("gcp", answers=answers) as server:
        assert [notice.effect for notice in read(server)] == effects


def test_google_names_the_reasons() -> None:
    with MetadataServer("gcp", answers={gcp.UPCOMING: GCP_MAINTENANCE}) as server:
        [notice] = read(server)
    assert (notice.kind, notice.not_before, notice.description) == (
        "maintenance-scheduled",
        1733079601.0,
        "PLANNED_UPDATE, PLANNED_NETWORK_UPDATE",
    )


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("status", [302, 403, 429, 500, 503])
def test_a_service_that_fails_says_nothing_of_notices(provider: str, status: int) -> None:
    with MetadataServer(provider, status=status) as server:
        error = fail(server)
    assert f"HTTP {status}" in str(error)
    assert not error.is_unreachable


@pytest.mark.parametrize(
    ("provider", "path"),
    [
        *(("aws", path) for path in (aws.SCHEDULED, aws.SPOT, aws.REBALANCE)),
        *(("azure", path) for path in (azure.EVENTS, azure.NAME)),
        *(("gcp", path) for path in (gcp.EVENT, gcp.PREEMPTED, gcp.UPCOMING)),
    ],
)
@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe",
        b"<html>Log in</html>",
        b"[[[[",
        b"7",
        b'[{"Code": 7, "NotBefore": 7}]',
        b'{"Events": [{"Resources": 7}]}',
        b'{"Events": [7]}',
        b'{"window_start_time": [], "action": {}, "time": "soon", "noticeTime": {}}',
        b"[" * 100_000,
        b"x" * 1_000_000,
    ],
)
def test_what_is_no_answer_says_nothing_of_notices(provider: str, path: str, body: bytes) -> None:
    """A fault of the service opens and ends no finding."""
    with MetadataServer(provider, answers={path: body}) as server:
        if (path, body) == (azure.NAME, b"7"):  # a VM may be called so; it has no events
            assert read(server) == []
            return
        error = fail(server)
    assert len(str(error)) < 500
    assert path.partition("?")[0] in str(error)


def test_a_service_that_hangs_is_not_waited_for() -> None:
    service_of = MetadataService
    with MetadataServer("aws", delay_s=30.0) as server:
        begun = time.monotonic()
        with pytest.raises(MetadataFailed, match=r"no answer within 0\.2 s") as caught:
            asyncio.run(service_of(server.url, timeout_s=0.2).get("/latest", {}))
        assert caught.value.is_unreachable
        assert time.monotonic() - begun < patient(2.0)


def test_no_service_at_all() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(MetadataFailed) as caught:
            asyncio.run(MetadataService(url, timeout_s=2.0).get("/latest", {}))
    assert caught.value.is_unreachable


def test_another_server_is_not_taken_for_google() -> None:
    with MetadataServer("azure") as server:
        provider = gcp.GcpNotices(MetadataService(server.url, timeout_s=2.0), 900.0)
        with pytest.raises(MetadataFailed, match="not Google's metadata server"):
            asyncio.run(provider.read_notices())


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("21 Jan 2019 09:00:43 GMT", 1548061243.0),
        ("Mon, 19 Sep 2016 18:29:47 GMT", 1474309787.0),
        ("2017-09-18T08:22:00Z", 1505722920.0),
        ("", None),
        (None, None),
    ],
)
def test_times(text: object, moment: float | None) -> None:
    assert parse_moment(text) == moment


@pytest.mark.parametrize("text", ["soon", "2017-99-18T08:22:00Z", 7, "21 Foo 2019", "9999", []])
def test_what_is_no_time(text: object) -> None:
    with pytest.raises(ValueError, match="a time is"):
        parse_moment(text)


def test_the_most_urgent_notices_are_handed_in() -> None:
    scheduled = [
        Notice(effect=Effect.SCHEDULED, kind="reboot", not_before=float(number))
        for number in range(MAX_NOTICES, 0, -1)
    ]
    imminent = Notice(effect=Effect.IMMINENT, kind="preempted")
    first = select_first([*scheduled, imminent])
    assert (len(first), first[0], first[1].not_before) == (MAX_NOTICES, imminent, 1.0)


def test_texts_are_bounded_and_printable() -> None:
    notice = Notice(
        effect=Effect.PAUSE, kind="a\x1b[2J" * 99, id="\n" * 9, description="é\u202e" * 999
    )
    shown = notice.to_json()
    assert all(str(value).isprintable() for value in shown.values())
    assert len(str(shown["description"])) <= 300
    assert len(str(shown["kind"])) <= 64
    assert shown["notBefore"] is None


def test_the_schema_has_each_effect_and_each_provider() -> None:
    """Its types are literals, which cannot be derived."""
    effects = get_args(get_type_hints(schema.CloudNotice)["effect"])
    assert effects == tuple(effect.value for effect in Effect)
    assert get_args(get_type_hints(schema.StoreNoticesRequest)["provider"]) == PROVIDERS
