"""What is typed wrongly: exit code 2 with every verb, in words of the command line, and nobody is
asked.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitald.cli import (
    VERBS,
    argument_types,
    build_parser,
    check,
    client,
    demo,
    finding_text,
    main,
    render,
)
from vitald.cli.diag import views
from vitald.cli.recovery.run import start_attempt
from vitald.config.sections import load_config
from vitald.model.words import Outcome, Status
from vitald.simulator.profiles import list_profiles

NOBODY = ("--socket", "/nonexistent/vitald.sock")  # whoever asks it is told so, and exits with 30


def code_of(*arguments: str) -> int | str | None:
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code


def leaves(one: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    below = [action for action in one._actions if isinstance(action, argparse._SubParsersAction)]
    yield from (leaf for action in below for sub in action.choices.values() for leaf in leaves(sub))
    if not below:
        yield one


WRONG = [
    (("stauts",), "no verb 'stauts'; did you mean 'status'?"),
    (("xyzzy",), "no verb 'xyzzy'; vitald --help"),
    (("--nonsense",), "VERB"),
    (("check", "--tmeout", "1", *NOBODY), "--tmeout"),
    *(
        (("check", "--timeout", value, *NOBODY), "argument --timeout: expected")
        for value in ("abc", "0", "-1", "nan", "inf", "3601", "")
    ),
    (("check", "--for", "lunch", *NOBODY), "argument --for"),
    (("check", "--as", "root", *NOBODY), "argument --as"),
    (("status", "--as", "npd", *NOBODY), "--as"),
    (("components", "--kind", "tape", *NOBODY), "argument --kind"),
    *(
        ((verb, value, "--reason", "x", *NOBODY), "argument ID: expected a finding's number")
        for verb in ("clear", "remedy")
        for value in ("first", "-1", "1.5", "#", "\u0661", "")
    ),
    (("why", "first", *NOBODY), "argument ID: expected a finding's number"),
    *(
        (("clear", "1", "--reason", value, *NOBODY), "argument --reason: expected")
        for value in ("", " ", "a\nb", "x" * 501)
    ),
    (("clear", "1", *NOBODY), "--reason"),
    (("accept", "1", "--reason", "x", *NOBODY), "--for --end"),
    *(
        (("accept", "1", "--for", value, "--reason", "x", *NOBODY), "from 1m to 90d")
        for value in ("x", "5s", "91d", "")
    ),
    (("remedy", "1", "--reason", "", *NOBODY), "argument --reason"),
    *(
        (("clear", *chosen, "--reason", "x", *NOBODY), "which findings? Either IDs, or --code and")
        for chosen in (
            (),
            ("1", "--all"),
            ("1", "--code", "xid/79"),
            ("--code", "xid/79", "--all"),
            ("--component", "gpu/0", "1"),
        )
    ),
    (("clear", "--all", "--replaced", "--reason", "x", *NOBODY), "--replaced: name the devices"),
    *(
        (("findings", "--limit", value, *NOBODY), "argument --limit: expected")
        for value in ("0", "1001", "all")
    ),
    *(
        (("events", "--limit", value, *NOBODY), "argument --limit: expected")
        for value in ("0", "-1", "many")
    ),
    (("events", "--limit", "1001", *NOBODY), "--limit 1001: at most 1000 without --since"),
    *(
        (("events", "--since", value, *NOBODY), "argument --since: expected")
        for value in ("yesterday", "-1", "5 m", "")
    ),
    (("events", "--code", "79", *NOBODY), "argument --code: expected"),
    (("release", *NOBODY), "--reason TEXT"),
    *(
        (("release", "--for", value, "--reason", "x", *NOBODY), "argument --for: expected a time")
        for value in ("soon", "100d", "0s", "")
    ),
    (
        ("release", "--device", " ", "--reason", "x", *NOBODY),
        "argument --device: expected an index, serial number",
    ),
    (("expect", "--confirm", *NOBODY), "--reason TEXT"),
    (("expect", "--reason", "x", *NOBODY), "--reason is for --confirm"),
    (("drill", "xid", "abc", *NOBODY), "argument CODE: 'abc' is not a code"),
    (("drill", "xid", *NOBODY), "argument CODE: expected one"),
    (("drill", "xid/79", "80", *NOBODY), "'80' is one too many"),
    (("drill", "gpu", "79", *NOBODY), "argument kind"),
    (("drill", "line", "two\nlines", *NOBODY), "argument CODE: expected one line"),
    *(
        (("drill", "xid", "79", "--for", value, *NOBODY), "argument --for: expected a time")
        for value in ("soon", "100d")
    ),
    (("drill", "xid", "79", "--device", "a\nb", *NOBODY), "argument --device: expected"),
    (("explain", "xif/79"), "no kind 'xif', did you mean xid?"),
    (("explain", "nosuch/1"), "no kind 'nosuch'; there are "),
    (("explain", ""), "no kind ''"),
    *(
        ((*verb, "--profile", "nope"), "argument --profile: expected one of nvidia, hyperpod")
        for verb in (("explain", "xid/79"), ("scan", "-"), ("replay", "x"), ("diag", "read", "-"))
    ),
    (("replay",), "LEDGER|FILE"),
    (("diag",), "WHAT"),
    (("diag", "walk"), "WHAT"),
    *(
        (("diag", "run", value, *NOBODY), "argument LEVEL: expected a level from 1 to 4")
        for value in ("nccl", "7", "0", "\u0662")
    ),
    (("diag", "run", "--gpu", "", *NOBODY), "argument --gpu: expected"),
    (("diag", "run", "3", *NOBODY), "--reason TEXT"),
    (("diag", "list", "--limit", "0", *NOBODY), "argument --limit: expected"),
    *(
        (("diag", "show", value, *NOBODY), "expected a run's id")
        for value in ("../../status", "a b", "")
    ),
    (("diag", "cancel", *NOBODY), "--reason"),
    (("diag", "read", "-", "--level", "9"), "argument --level: expected"),
    (("diag", "read", "-", "--exit-code", "bad"), "argument --exit-code: expected"),
    *(
        (("page", "--port", value, *NOBODY), "argument --port: expected a port from 0 to 65535")
        for value in ("65536", "-1", "http", "")
    ),
    (("report", "--since", "yesterday", *NOBODY), "argument --since: expected"),
    (("report", "--html", "--ledger", *NOBODY), "--ledger is for an archive"),
    (("report", "--since", "99999d", *NOBODY), "argument --since: expected"),
    (("report", "--max-size", "1", *NOBODY), "argument --max-size: expected a size"),
    (("report", "--timeout", "0", *NOBODY), "argument --timeout: expected"),
    (("slurm", "lunch"), "prolog"),
    (("publish", "--retire"), "vitald publish kubernetes --retire"),
    (("publish", "kubernetes"), "vitald publish kubernetes --retire"),
    (("publish", "s3", "--retire"), "argument what"),
    (("publish", "kubernetes", "--retire", "--dry-run"), "--dry-run is for"),
    (("publish", "--kubeconfig", "f"), "--kubeconfig is for"),
    (("publish", "--pods", "a=b"), "--pods is for: vitald publish sweep"),
    (("publish", "sweep", "--retire"), "vitald publish kubernetes --retire"),
    (("recovery",), "WHAT"),
    (("recovery", "walk"), "WHAT"),
    (("recovery", "status", "--dry-run"), "--dry-run"),
    (("recovery", "run", "--json"), "--json"),
    (("notify",), "WHAT"),
    (("notify", "test", "--config", "/dev/null"), "NAME"),
    (("notify", "show", "x", "--config", "/dev/null"), "no receiver 'x'"),
    (("check", "--due", "coffee", *NOBODY), "argument --due"),
    *(
        (("check", "--due", "reboot", *more, *NOBODY), "--due goes with none of --for, --strict")
        for more in (("--strict",), ("--for", "running"), ("--as", "vitald"))
    ),
    (("demo", "--profile", "tpu"), "argument --profile"),
    (("demo", "--pause", "long"), "argument --pause: expected"),
    (("config",), "WHAT"),
    (("config", "write"), "argument WHAT"),
    (("config", "example", "FILE"), "FILE"),
]


def test_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for arguments, said in WRONG:
        code = code_of(*arguments)
        shown = capsys.readouterr()
        told = " ".join(shown.err.split())
        if (
            (code, shown.out) != (2, "")
            or said not in told
            or re.search(r"invalid \w+ value|holdSeconds|\{\"|Traceback", told)
        ):
            wrong.append((arguments, code, shown))
    assert wrong == []


def test_every_verb_has_wrong_words() -> None:
    """Of `gpus`, `run` and `version` there is nothing but files to be wrong."""
    assert set(VERBS) - {arguments[0] for arguments, _ in WRONG} == {
        "gpus",
        "run",
        "version",
    }


def test_no_option_speaks_python() -> None:
    """Each type says itself what it expects; argparse would name the function."""
    checked = 0
    for leaf in leaves(build_parser()):
        for action in leaf._actions:
            if action.type is None or action.type is Path or action.choices is not None:
                continue
            assert callable(action.type)
            with pytest.raises(argparse.ArgumentTypeError, match="expected"):
                action.type("\x1bno such thing\n")
            checked += 1
    assert checked > 40


def test_options_between_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    """In any order, and a code in one word or in two."""
    for arguments in (
        ("config", "check", "--json", os.devnull),
        ("config", "check", os.devnull, "--json"),
        ("config", "--json", "check", os.devnull),
        ("explain", "xid", "79", "--json"),
        ("explain", "--json", "xid", "79"),
        ("explain", "xid", "--json", "79"),
        ("explain", "xid/79", "--json"),
        ("explain", "XID:79", "--json"),
    ):
        assert code_of(*arguments) == 0, arguments
        assert re.match(
            r'\{"(file": "/dev/null", "ok": true|code": "xid/79")', capsys.readouterr().out
        ), arguments
    # These get as far as asking.
    for arguments in (
        ("drill", "xid", "79", "--for", "1m"),
        ("drill", "xid", "--for", "1m", "79"),
        ("drill", "xid/79"),
        ("clear", "#1", "--reason", "x"),
        ("clear", "1", "--reason", "x", "2", "--dry-run"),
        ("accept", "--end", "--code", "xid/79", "--component", "3", "--reason", "x"),
        ("remedy", "#1", "--reason", "x"),
        ("why", "#1"),
        ("events", "--since", "2026-11-18T13:46:40Z"),
        ("events", "--since", "7", "--limit", "5000"),
    ):
        assert code_of(*arguments, *NOBODY) == 30, arguments
        assert "no socket at" in capsys.readouterr().err, arguments


def test_each_status_and_each_outcome_has_an_exit_code() -> None:
    statuses = {status.value for status in Status}
    assert {protocol: set(codes) for protocol, codes in check.PROTOCOLS.items()} == dict.fromkeys(
        check.PROTOCOLS, statuses
    )
    assert set(views.EXIT) == {outcome.value for outcome in Outcome}


def test_words_of_a_newer_daemon_are_shown_as_they_are() -> None:
    assert finding_text.describe_when("after_job") == " after the running job"
    assert finding_text.describe_when("next_\x1bmonth") == " (next_\\x1bmonth)"
    assert (render.name_kind("gpu"), render.name_kind("dpu")) == ("GPU", "dpu")
    assert not finding_text.makes_unfit("repaint_node")


def test_what_words_become() -> None:
    assert (argument_types.parse_finding("#12"), argument_types.parse_finding("12")) == ("12", "12")
    assert (
        argument_types.parse_duration(1, 3600, "")("10m"),
        argument_types.parse_reason("  a word "),
    ) == (
        600.0,
        "a word",
    )


def test_the_verbs_by_what_they_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Alone it is a wrong use; asked for help it is none."""
    assert code_of() == 2
    alone = capsys.readouterr()
    assert code_of("--help") == 0
    assert (alone.out, alone.err) == ("", capsys.readouterr().out)
    purposes = dict.fromkeys(purpose for *_, purpose in VERBS.values())
    assert [line for line in alone.err.splitlines() if line in purposes] == [*purposes]
    assert [found[1] for found in re.finditer(r"^  (\w+) ", alone.err, re.MULTILINE)] == [*VERBS]
    assert max(map(len, alone.err.splitlines())) <= 80


def test_the_models_of_the_demo() -> None:
    assert set(demo._MODELS) == {*list_profiles()}


# --- text


def test_the_group_is_named(tmp_path: Path) -> None:
    """`grp` has every number from 0 of a Debian machine: 1 is daemon."""
    place = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(place))
    for gid, said in (
        (0, "be root"),
        (1, "join the group daemon, or be root"),
        (54321, "join the group 54321, or be root"),
    ):
        if os.geteuid() == 0 or gid == os.getgid():
            os.chown(place, -1, gid)
            assert str(client._explain_no_answer(place, PermissionError())).endswith(f": {said}")
    assert "the socket's group" in str(
        client._explain_no_answer(tmp_path / "absent", PermissionError())
    )


def test_a_dry_recovery_speaks_to_a_person(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where nothing is asked for: lines of log are for the unit's journal."""
    config = tmp_path / "config.toml"
    config.write_text(f'[paths]\nruntime = "{tmp_path}/run"\nstate = "{tmp_path}/state"\n')
    (tmp_path / "run").mkdir()
    assert start_attempt(load_config(config), dry_run=True).run() == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("would do nothing: there is no request\n", "")
