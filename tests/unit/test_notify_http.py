"""Notifications against a real server that is slow, fails, or is not who it should be; and files
with secrets.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import os
import re
import socket
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.notifications import (
    ReceivingServer,
    Reply,
    make_certificates,
    make_notification,
)
from vitald.publish.notify.notification import NotificationKind
from vitald.publish.notify.receiver import NotificationRefused
from vitald.publish.notify.secret_file import (
    SecretUnusable,
    parse_headers,
    parse_routing_key,
    parse_signing_keys,
    read_secret,
)
from vitald.publish.notify.settings import NotifySettings, describe_server
from vitald.publish.notify.webhook import WebhookReceiver
from vitald.publish.sink import SinkFailed

KEY = b"0123456789abcdef0123456789abcdef"
SECRETS = ("SECRET-IN-URL", "SECRET-TOKEN", base64.b64encode(KEY).decode(), "R" * 32)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server(certificates: Path) -> Iterator[ReceivingServer]:
    with ReceivingServer(certificates / "server.crt") as started:
        yield started


def write_secret(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def deliver(certificates: Path, address: str, **settings: Any) -> None:
    """Deliver one. Raises as deliver does."""
    values: dict[str, Any] = {"ca": certificates / "ca.crt", "url": (address,)}
    receiver = WebhookReceiver(NotifySettings(**(values | settings)))
    notification = make_notification(NotificationKind.OPENED)
    asyncio.run(receiver.deliver(notification))


def fail(certificates: Path, address: str, **settings: Any) -> Exception:
    """What it raises. Neither it nor its causes may have a secret in them."""
    with pytest.raises((SinkFailed, NotificationRefused)) as caught:
        deliver(certificates, address, **settings)
    shown = "".join(traceback.format_exception(caught.value))
    assert not any(secret in shown for secret in SECRETS), shown
    assert str(caught.value).isprintable()
    return caught.value


# --- what arrives


def test_a_request(certificates: Path, server: ReceivingServer, tmp_path: Path) -> None:
    key, begun = base64.b64encode(KEY).decode(), time.time()
    deliver(
        certificates,
        server.url,
        secret_file=write_secret(tmp_path / "key", f"whsec_{key}\n"),
        headers_file=write_secret(tmp_path / "headers", "Authorization: Bearer SECRET-TOKEN\n"),
    )
    (request,) = server.requests
    assert request.path == "/hook?token=SECRET-IN-URL"
    assert request.headers["authorization"] == "Bearer SECRET-TOKEN"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"].startswith("vitald/")
    signed = "{webhook-id}.{webhook-timestamp}.".format(**request.headers).encode() + request.body
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"
    assert begun - 1 <= int(request.headers["webhook-timestamp"]) <= time.time()
    assert json.loads(request.body)["finding"]["code"] == "xid/79"


def test_a_repeat_has_the_same_id(certificates: Path, server: ReceivingServer) -> None:
    deliver(certificates, server.url)
    deliver(certificates, server.url)
    first, second = server.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body


def test_pagerduty_gets_its_routing_key(
    certificates: Path, server: ReceivingServer, tmp_path: Path
) -> None:
    path = write_secret(tmp_path / "key", "R" * 32 + "\n", 0o440)
    deliver(certificates, server.url, format="pagerduty", routing_key_file=path)
    (request,) = server.requests
    assert json.loads(request.body)["routing_key"] == "R" * 32
    receiver = WebhookReceiver(
        NotifySettings(format="pagerduty", url=(server.url,), routing_key_file=path)
    )
    built = receiver.build_request(make_notification(NotificationKind.TEST), 0.0)
    assert b"R" * 32 not in built.shown and b"[secret]" in built.shown


# --- a server that fails


@pytest.mark.parametrize("status", [301, 302, 307, 308, 408, 425, 429, 500, 502, 503, 504])
def test_what_is_tried_again(certificates: Path, server: ReceivingServer, status: int) -> None:
    server.answers.append(Reply(status=status, headers={"Location": "https://127.0.0.2/x"}))
    error = fail(certificates, server.url)
    assert isinstance(error, SinkFailed) and str(status) in str(error)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 413, 422])
def test_what_is_final(certificates: Path, server: ReceivingServer, status: int) -> None:
    server.answers.append(Reply(status=status, content=b"SECRET-TOKEN\x1b[2J"))
    error = fail(certificates, server.url)
    assert isinstance(error, NotificationRefused) and str(status) in str(error)


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_what_is_delivered(certificates: Path, server: ReceivingServer, status: int) -> None:
    server.answers.append(Reply(status=status, content=b""))
    deliver(certificates, server.url)


def test_a_redirect_is_not_followed(certificates: Path, server: ReceivingServer) -> None:
    with ReceivingServer(certificates / "server.crt") as other:
        server.answers.append(Reply(status=307, headers={"Location": other.url}))
        error = fail(certificates, server.url)
        assert "redirect" in str(error)
        assert other.requests == []


@pytest.mark.parametrize(("text", "seconds"), [("7", 7.0), ("soon", None), ("-1", None)])
def test_retry_after(
    certificates: Path, server: ReceivingServer, text: str, seconds: float | None
) -> None:
    server.answers.append(Reply(status=429, headers={"Retry-After": text}))
    error = fail(certificates, server.url)
    assert isinstance(error, SinkFailed) and error.retry_after_s == seconds


def test_a_slow_server(certificates: Path, server: ReceivingServer) -> None:
    server.answers.append(Reply(delay_s=60.0))
    error = fail(certificates, server.url, timeout_s=0.5)
    assert isinstance(error, SinkFailed)
    assert str(error) == f"https://127.0.0.1:{server.port}: no answer within 0.5 s"


def test_a_connection_that_is_reset(certificates: Path, server: ReceivingServer) -> None:
    server.answers.append(Reply(resets=True))
    error = fail(certificates, server.url)
    assert isinstance(error, SinkFailed) and error.is_unreachable


def test_a_host_name_that_does_not_resolve(certificates: Path) -> None:
    error = fail(certificates, "https://hooks..example.com/SECRET-IN-URL")
    assert isinstance(error, SinkFailed) and error.is_unreachable


def test_nothing_listens(certificates: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    error = fail(certificates, f"https://127.0.0.1:{port}/SECRET-IN-URL")
    assert isinstance(error, SinkFailed) and error.is_unreachable


@pytest.mark.parametrize(
    "raw",
    [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000, b"\0" * 100, b"\r\n"],
)
def test_what_is_no_http(certificates: Path, server: ReceivingServer, raw: bytes) -> None:
    """The library's own error names the whole URL."""
    server.answers.append(Reply(raw=raw))
    assert isinstance(fail(certificates, server.url), SinkFailed)


def test_an_endless_body_is_not_read(certificates: Path, server: ReceivingServer) -> None:
    """The status is all that counts."""
    server.answers.append(Reply(endless=True))
    deliver(certificates, server.url)
    server.answers.append(Reply(status=500, endless=True))
    assert "500" in str(fail(certificates, server.url))


# --- a server that is not who it should be


@pytest.mark.parametrize("name", ["other", "expired"])
def test_a_wrong_certificate(certificates: Path, name: str) -> None:
    with ReceivingServer(certificates / f"{name}.crt") as server:
        error = fail(certificates, server.url)
        assert isinstance(error, SinkFailed) and "certificate" in str(error).lower()
        assert server.requests == []


def test_an_unknown_authority(certificates: Path, server: ReceivingServer) -> None:
    error = fail(certificates, server.url, ca=None)
    assert isinstance(error, SinkFailed) and "certificate" in str(error).lower()
    assert server.requests == []


def test_an_authority_that_cannot_be_read(certificates: Path, server: ReceivingServer) -> None:
    missing = certificates / "missing.crt"
    assert str(missing) in str(fail(certificates, server.url, ca=missing))


def test_a_replaced_authority(certificates: Path, server: ReceivingServer, tmp_path: Path) -> None:
    """The next attempt reads it again."""
    ca = tmp_path / "ca.crt"
    ca.write_bytes((certificates / "other.crt").read_bytes())
    receiver = WebhookReceiver(NotifySettings(url=(server.url,), ca=ca))
    notification = make_notification(NotificationKind.OPENED)

    async def send_twice() -> None:
        with pytest.raises(SinkFailed):
            await receiver.deliver(notification)
        ca.write_bytes((certificates / "ca.crt").read_bytes())
        await receiver.deliver(notification)

    asyncio.run(send_twice())
    assert len(server.requests) == 1


def test_proxies_of_the_environment_are_not_used(
    certificates: Path, server: ReceivingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    deliver(certificates, server.url)
    assert len(server.requests) == 1


def test_loopback_needs_no_tls(certificates: Path) -> None:
    with ReceivingServer() as server:
        deliver(certificates, server.url, ca=None)
        assert len(server.requests) == 1


def test_the_address_in_texts() -> None:
    assert [
        describe_server(url)
        for url in (
            "https://hooks.slack.com/services/T0/B0/SECRET",
            "https://user:SECRET@[::1]:8443/x?token=SECRET",
        )
    ] == ["https://hooks.slack.com", "https://[::1]:8443"]


def test_nothing_secret_is_logged(
    certificates: Path,
    server: ReceivingServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    headers = write_secret(tmp_path / "h", "Authorization: Bearer SECRET-TOKEN\n")
    for reply in (Reply(), Reply(status=404), Reply(status=500), Reply(raw=b"x\r\n\r\n")):
        server.answers.append(reply)
        try:
            deliver(certificates, server.url, headers_file=headers)
        except (SinkFailed, NotificationRefused):
            continue
    assert len(server.requests) == 4
    shown = capsys.readouterr()
    assert not any(secret in caplog.text + shown.out + shown.err for secret in SECRETS)


# --- files with secrets


def test_a_rotated_secret(certificates: Path, server: ReceivingServer, tmp_path: Path) -> None:
    headers = write_secret(tmp_path / "h", "Authorization: Bearer one\n")
    receiver = WebhookReceiver(
        NotifySettings(url=(server.url,), ca=certificates / "ca.crt", headers_file=headers)
    )

    async def send_twice() -> None:
        await receiver.deliver(make_notification(NotificationKind.OPENED))
        headers.write_text("Authorization: Bearer two\n")
        await receiver.deliver(make_notification(NotificationKind.OPENED))

    asyncio.run(send_twice())
    assert [each.headers["authorization"][-3:] for each in server.requests] == ["one", "two"]


def test_an_address_in_a_file_is_read_for_each_delivery(
    certificates: Path, server: ReceivingServer, tmp_path: Path
) -> None:
    file = write_secret(tmp_path / "url", "https://127.0.0.1:1/SECRET-IN-URL\n")
    receiver = WebhookReceiver(NotifySettings(ca=certificates / "ca.crt", url_file=file))

    async def deliver_to_both() -> None:
        with pytest.raises(SinkFailed, match=r"^https://127.0.0.1:1: Connection refused$"):
            await receiver.deliver(make_notification(NotificationKind.OPENED))
        file.write_text(f"{server.url}\n")
        await receiver.deliver(make_notification(NotificationKind.OPENED))

    asyncio.run(deliver_to_both())
    assert [each.path for each in server.requests] == ["/hook?token=SECRET-IN-URL"]


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("https://x.example/SECRET-IN-URL", 0o644, "mode 0644 lets every user in"),
        ("http://x.example/SECRET-IN-URL", 0o600, "expected an address https://HOST"),
        ("https://x.example/a\nhttps://SECRET-IN-URL/", 0o600, "expected an address"),
        ("SLACK=https://x.example/SECRET-IN-URL", 0o600, "expected an address"),
        ("", 0o600, "expected an address"),
        pytest.param(f"https://x.example/{'y' * 3000}", 0o600, "expected an address", id="long"),
    ],
)
def test_an_address_in_a_file_that_is_refused(
    certificates: Path, tmp_path: Path, text: str, mode: int, said: str
) -> None:
    path = write_secret(tmp_path / "url", text, mode)
    error = fail(certificates, "", url=(), url_file=path)
    assert isinstance(error, SinkFailed)
    assert str(error).startswith(f"{path}: ") and said in str(error)
    assert "x.example" not in str(error)


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602, 0o666, 0o601])
def test_a_secret_that_everybody_can_read(
    certificates: Path, server: ReceivingServer, tmp_path: Path, mode: int
) -> None:
    path = write_secret(tmp_path / "h", "Authorization: Bearer SECRET-TOKEN\n", mode)
    error = fail(certificates, server.url, headers_file=path)
    assert isinstance(error, SinkFailed)
    assert f"{path}: mode {mode:04o} " in str(error) and "chmod o=" in str(error)
    assert server.requests == []


def test_files_that_hold_no_secret(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    large = write_secret(tmp_path / "large", "x" * 100_000)
    binary.chmod(0o600)
    for path, said in (
        (tmp_path / "absent", "No such file"),
        (tmp_path / "fifo", "no ordinary file"),
        (tmp_path / "folder", "Is a directory"),
        (binary, "not ASCII"),
        (large, "more than 65536 bytes"),
    ):
        with pytest.raises(SecretUnusable, match=f"{re.escape(str(path))}: .*{said}"):
            read_secret(path, parse_headers)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Authorization", "line 1: expected a header"),
        ("A b: c", "line 1: expected a header"),
        ("A:\tb\x00c", "line 1: the value of A"),
        ("A: b\x1b", "line 1: the value of A"),
        ("A:", "line 1: the value of A"),
        ("A: " + "x" * 9000, "line 1: the value of A"),
        ("\nHost: evil", "line 2: the header Host is set by vitald"),
        ("content-length: 3", "set by vitald"),
        ("Transfer-Encoding: chunked", "set by vitald"),
        ("webhook-signature: v1,x", "set by vitald"),
        ("A: b\na: c", "line 2: a is given twice"),
        ("\n".join(f"A{number}: b" for number in range(40)), "at most 32"),
    ],
)
def test_headers_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        parse_headers(text)
    assert "evil" not in str(caught.value)


def test_headers_with_a_line_break_are_two() -> None:
    """A line break ends a header: none can get into a value."""
    parsed = parse_headers("# a comment\r\nX-A: one\rX-B: two\nX-C:three\n")
    assert parsed == {"X-A": "one", "X-B": "two", "X-C": "three"}


def test_signing_keys() -> None:
    keys = [base64.b64encode(bytes([number]) * 32).decode() for number in range(5)]
    assert parse_signing_keys(f"whsec_{keys[1]}\n\nwhsec_{keys[2]}") == (b"\1" * 32, b"\2" * 32)
    for text in (
        "",
        keys[0],
        "whsec_",
        "whsec_!!!!",
        f"whsec_{base64.b64encode(b'short').decode()}",
        f"whsec_{base64.b64encode(b'x' * 65).decode()}",
        "\n".join(f"whsec_{key}" for key in keys),
    ):
        with pytest.raises(ValueError, match="expected") as caught:
            parse_signing_keys(text)
        assert not any(key in str(caught.value) for key in keys)


@pytest.mark.parametrize("text", ["", "short", "R" * 33, "R" * 31 + "\n" + "R", "R" * 31 + "-"])
def test_routing_keys_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="32 letters and digits"):
        parse_routing_key(text)
