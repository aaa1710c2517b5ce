"""Protects the advice on delegation: what is missing, and only that."""

from __future__ import annotations

import pytest

from lab.storage.zfs.allow import PERMISSIONS, User, granted, missing, rule

ALICE = User("alice", ("alice", "staff", "disk"))
ALL = ",".join(PERMISSIONS)
LINE = "---- Permissions on {} --------------------------------------------\n"


def grant(line: str, *, place: str = "tank/lab", section: str = "Local+Descendent") -> str:
    return LINE.format(place) + f"{section} permissions:\n\t{line}\n"


@pytest.mark.parametrize(
    "text",
    [
        grant(f"user alice {ALL}"),
        grant(f"group staff {ALL}"),
        grant(f"everyone {ALL}"),
        grant(f"user alice {ALL}", place="tank"),
        grant(f"user alice {ALL}", place="tank", section="Descendent"),
        LINE.format("tank/lab")
        + f"Permission sets:\n\t@lab {ALL}\n"
        + "Local+Descendent permissions:\n\tuser alice @lab\n",
        grant(f"user alice {','.join(PERMISSIONS[:9])}")
        + grant(f"group staff {','.join(PERMISSIONS[9:])}", place="tank"),
    ],
)
def test_who_has_all_lacks_nothing(text: str) -> None:
    assert missing(text, "tank/lab", ALICE) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        LINE,
        grant(f"user bob {ALL}"),
        grant(f"group wheel {ALL}"),
        grant(f"user staff {ALL}"),
        grant(f"group alice.x {ALL}"),
        grant(f"user alice {ALL}", section="Local"),
        grant(f"user alice {ALL}", section="Descendent"),
        grant(f"user alice {ALL}", place="tank", section="Local"),
        grant("user alice @unknown"),
        grant("user alice"),
        LINE.format("tank/lab") + f"Create time permissions:\n\t{ALL}\n",
        LINE.format("tank/lab") + f"Permission sets:\n\t@lab {ALL}\n",
        f"\tuser alice {ALL}\n",
    ],
)
def test_without_any_permission_the_error_names_the_command(text: str) -> None:
    (command,) = missing(text, "tank/lab", ALICE)
    assert command == f"zfs allow -u alice {','.join(sorted(PERMISSIONS))} tank/lab"


def test_only_what_is_missing_is_asked_for() -> None:
    text = grant(f"user alice {','.join(p for p in PERMISSIONS if p not in ('hold', 'sync'))}")
    assert missing(text, "tank/lab", ALICE) == ["zfs allow -u alice hold,sync tank/lab"]
    assert granted(text, "tank/lab", User("bob", ())) == set()


def test_devices_need_a_rule_or_a_group() -> None:
    text = grant(f"everyone {ALL}")
    alone = User("alice", ("alice",))
    found = missing(text, "tank/lab", alone)
    assert rule("tank/lab", alone) in found[0]
    assert "udevadm" in found[1]
    assert missing(text, "tank/lab", alone, device_rule=f"{rule('tank/lab', alone)}\n") == []


def test_root_needs_nothing() -> None:
    assert missing("", "tank/lab", User("root", ())) == []
