"""What vm-bhyve prints is read as its scripts write it, and anything else is refused.

The texts are laid out as core::list, info::guest_show, switch::list and datastore::list of
vm-bhyve do, through column(1).
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.errors import Conflict, HostUnfit, LabError, NotFound
from lab.hypervisor.bhyve import text
from lab.hypervisor.bhyve.command import meaning
from lab.hypervisor.bhyve.text import Row, Switch

LIST = """\
NAME        DATASTORE  LOADER     CPU  MEMORY  VNC      AUTO     STATE                   TAGS
backup      default    bhyveload  1    512M    -        No       Locked (other.example)  -
desktop     default    uefi       4    8G      -        Yes [1]  Running (2301)          office,big
half        default    none       -    No      Stopped  -
lab-pxc-n1  default    uefi       2    768M    -        No       Running (48111)         lab
lab-pxc-n2  default    uefi       2    768M    -        No       Bootloader (48112)      lab
lab-pxc-n3  default    uefi       2    768M    -        No       Stopped                 lab
sleeper     fast       uefi       1    1G      -        No       Suspended               -
"""
OLD_LIST = """\
NAME        DATASTORE  LOADER  CPU  MEMORY  VNC  AUTO     STATE
desktop     default    uefi    4    8G      -    Yes [1]  Running (2301)
lab-pxc-n1  default    uefi    2    768M    -    No       Locked (host.example)
lab-pxc-n2  default    uefi    2    768M    -    No       Stopped
"""
INFO = """\
------------------------
Virtual Machine: lab-pxc-n1
------------------------
  state: running (48111)
  datastore: default
  loader: uefi
  uuid: 02688c66-efd2-587e-be00-e8e7e908354f
  cpu: 2
  memory: 768M
  memory-resident: 805306368 (768.000M)

  console-ports
    com1: /dev/nmdm-lab-pxc-n1.1B

    vtcon0: /zroot/vm/lab-pxc-n1/vtcon.org.qemu.guest_agent.0

  network-interface
    number: 0
    emulation: virtio-net
    virtual-switch: lab23306
    fixed-mac-address: 52:54:00:4c:00:01
    fixed-device: -
    active-device: tap0
    desc: vmnet/lab-pxc-n1/0/lab23306
    mtu: 1500
    bridge: vm-lab23306
    bytes-in: 1234 (1.205K)
    bytes-out: 42 (42.000B)

  virtual-disk
    number: 0
    device-type: custom
    emulation: virtio-blk
    options: nocache,ser=lab-os
    system-path: /dev/zvol/zroot/lab/labs/pxc/n1/os

"""
SWITCHES = """\
NAME      TYPE      IFACE        ADDRESS            PRIVATE  MTU   VLAN  PORTS
public    standard  vm-public    192.0.2.1/24       no       9000  -     em0 em1
                                 3fff::1/64
v6        standard  vm-v6        3fff:1::1/64       no       -     -     -
lab23306  standard  vm-lab23306  100.86.194.129/26  no       -     -     -
gone      standard  -            -                  yes      -     -     -
fabric    vale      vale0:       n/a                n/a      n/a   n/a   n/a
"""
DATASTORES = """\
NAME            TYPE        PATH                      ZFS DATASET
default         zfs         /zroot/vm                 zroot/vm
fast            directory   /mnt/some disk/with a long name/vm -
isos            iso         /srv/isos                 -
"""


def test_guests_and_their_states() -> None:
    found = text.guests(LIST)
    assert {row.name: row.state for row in found.values()} == {
        "backup": "locked",
        "desktop": "running",
        "half": "stopped",
        "lab-pxc-n1": "running",
        "lab-pxc-n2": "running",
        "lab-pxc-n3": "stopped",
        "sleeper": "stopped",
    }


def test_a_lock_that_names_no_host() -> None:
    """Protects all commands: vm-bhyve asks whether there is a lock first, and reads it then.

    ``run.lock`` may have gone meanwhile, or be empty: made and not written yet.
    """
    found = text.guests(LIST.replace("Locked (other.example)", "Locked ()         "))
    assert found["backup"].state == "locked"


def test_guests_as_versions_before_tags_list_them() -> None:
    assert [row.state for row in text.guests(OLD_LIST).values()] == ["running", "locked", "stopped"]


def test_no_guests_at_all() -> None:
    assert text.guests(LIST.splitlines()[0] + "\n") == {}


@pytest.mark.parametrize("state", ["Stopped", "Running", "Locked"])
def test_tags_that_look_like_states(state: str) -> None:
    """Protects from a tag that a person chose: it is not the state."""
    line = f"x  default  uefi  1  1G  -  No  Running (7)  {state}"
    found = text.guests(f"{LIST.splitlines()[0]}\n{line}\n")
    assert found == {"x": Row("x", "running")}


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "\n",
        "vm-bhyve: Bhyve virtual machine management v1.7.5\n",
        LIST.replace("STATE", "CONDITION"),
        LIST.replace("Running (48111)", "Running ()"),
        LIST.replace("Running (48111)", "Dreaming"),
        LIST.replace("Locked (other.example)", "Locked"),
        LIST + "lab-pxc-n4\n",
    ],
)
def test_a_list_that_is_not_understood_is_refused(damaged: str) -> None:
    with pytest.raises(HostUnfit, match="vm list"):
        text.guests(damaged)


@given(st.integers(0, len(LIST)), st.sampled_from([LIST, OLD_LIST]))
@settings(max_examples=300, deadline=None)
def test_a_list_that_was_cut_tells_no_lies(at: int, whole: str) -> None:
    """Protects running guests: what was cut is refused, or says less, but never otherwise."""
    try:
        found = text.guests(whole[:at])
    except HostUnfit:
        return
    truth = text.guests(whole)
    for name, row in found.items():
        assert truth[name].state == row.state


@given(st.text())
@settings(deadline=None)
def test_anything_is_read_or_refused(anything: str) -> None:
    """Protects from tracebacks: no text at all ends in another error."""
    for read in (
        text.guests,
        text.switches,
        text.datastores,
        text.version,
        lambda said: text.state_of(said, "x"),
    ):
        for said in (anything, f"{LIST.splitlines()[0]}\n{anything}", f"{SWITCHES}{anything}"):
            with suppress(HostUnfit):
                read(said)


_CELL = st.from_regex(r"[!-~]+( [!-~]+)?", fullmatch=True)
_NAME = st.from_regex(r"[a-z0-9][.a-z0-9_-]{0,40}[a-z0-9]", fullmatch=True)
_STATES = {
    "Running (1)": "running",
    "Bootloader (22)": "running",
    "Stopped": "stopped",
    "Suspended": "stopped",
    "Locked (a.example)": "locked",
}


@given(
    st.dictionaries(
        _NAME,
        st.tuples(
            st.lists(st.one_of(st.just(""), _CELL), min_size=6, max_size=6),
            st.sampled_from(sorted(_STATES)),
        ),
        max_size=6,
    )
)
@settings(deadline=None)
def test_whatever_the_other_cells_hold(rows: dict[str, tuple[list[str], str]]) -> None:
    """Protects from guests that others made, with settings missing or odd."""
    lines = [LIST.splitlines()[0]]
    for name, (cells, state) in rows.items():
        lines.append("  ".join(cell for cell in [name, *cells, state, "-"] if cell))
    found = text.guests("\n".join(lines))
    assert {name: row.state for name, row in found.items()} == {
        name: _STATES[state] for name, (_, state) in rows.items()
    }


def test_the_state_of_one_guest() -> None:
    assert text.state_of(INFO, "lab-pxc-n1") == "running"
    assert text.state_of(INFO.replace("running (48111)", "stopped"), "lab-pxc-n1") == "stopped"
    assert text.state_of(INFO.replace("running (4", "bootloader (4"), "lab-pxc-n1") == "running"


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        INFO.replace("lab-pxc-n1", "lab-pxc-n2", 1),
        INFO.replace("running (48111)", "running"),
        INFO.replace("  state:", "state:"),
        "Virtual Machine: lab-pxc-n1\nVirtual Machine: other\n  state: stopped\n",
    ],
)
def test_a_state_that_is_not_there_is_refused(damaged: str) -> None:
    with pytest.raises(HostUnfit, match="vm info"):
        text.state_of(damaged, "lab-pxc-n1")


@given(st.integers(0, len(INFO)))
@settings(deadline=None)
def test_info_that_was_cut_tells_no_lies(at: int) -> None:
    try:
        assert text.state_of(INFO[:at], "lab-pxc-n1") == "running"
    except HostUnfit:
        assert at < INFO.index("\n  datastore")


def test_switches() -> None:
    found = text.switches(SWITCHES)
    assert found["public"] == Switch("public", "vm-public", "192.0.2.1/24")
    assert found["v6"] == Switch("v6", "vm-v6", "")
    assert found["lab23306"] == Switch("lab23306", "vm-lab23306", "100.86.194.129/26")
    assert found["gone"] == Switch("gone", "", "")
    assert list(found) == ["public", "v6", "lab23306", "gone", "fabric"]


@given(st.integers(0, len(SWITCHES)))
@settings(deadline=None)
def test_switches_that_were_cut_tell_no_lies(at: int) -> None:
    try:
        found = text.switches(SWITCHES[:at])
    except HostUnfit:
        return
    truth = text.switches(SWITCHES)
    assert all(truth[name] == switch for name, switch in found.items())


def test_datastores() -> None:
    found = text.datastores(DATASTORES)
    assert (str(found["default"].path), found["default"].dataset) == ("/zroot/vm", "zroot/vm")
    assert str(found["fast"].path) == "/mnt/some disk/with a long name/vm"
    assert found["fast"].dataset == ""


@pytest.mark.parametrize("damaged", ["", "NAME TYPE PATH\n", DATASTORES.replace("/zroot/vm  ", "")])
def test_datastores_that_are_not_understood_are_refused(damaged: str) -> None:
    with pytest.raises(HostUnfit, match="vm datastore list"):
        text.datastores(damaged)


@pytest.mark.parametrize("version", ["1.5.0", "1.7.5", "1.8-devel"])
def test_versions(version: str) -> None:
    assert text.version(f"vm-bhyve: Bhyve virtual machine management v{version}\n") == version


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("/usr/local/sbin/vm: ERROR: unable to locate virtual machine 'x'", NotFound),
        ("/usr/local/sbin/vm: ERROR: x doesn't appear to be a running virtual machine", NotFound),
        ("  ! x does not seem to be a valid virtual machine", NotFound),
        ("  ! guest appears to be running already", Conflict),
        ("/usr/local/sbin/vm: ERROR: switch x already exists", Conflict),
        ("/usr/local/sbin/vm: ERROR: virtual machines can only be managed by root", HostUnfit),
        ("/usr/local/sbin/vm: ERROR: something that nobody has seen", HostUnfit),
    ],
)
def test_messages_mean_errors(said: str, error: type[LabError]) -> None:
    found = meaning("doing it", said)
    assert type(found) is error
    assert found.details == (said.strip(),)
