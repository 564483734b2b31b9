"""When the demo takes its daemon for started."""

from __future__ import annotations

import socket
from pathlib import Path

from vitald.cli.demo import _accepts_clients


def test_a_socket_that_is_only_bound_accepts_nobody(tmp_path: Path) -> None:
    """Between bind(2) and listen(2) its file is there, and a client is refused."""
    place = tmp_path / "vitald.sock"
    assert not _accepts_clients(place)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        assert place.exists()
        assert not _accepts_clients(place)
        listener.listen()
        assert _accepts_clients(place)


def test_a_path_that_no_socket_can_have_is_left_to_the_daemon(tmp_path: Path) -> None:
    """Its message names the path, its length and the setting."""
    assert not _accepts_clients(tmp_path / ("a" * 108))
