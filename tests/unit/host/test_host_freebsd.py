"""FreeBSD as a host: each thing that bhyve needs is checked, with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.errors import CommandFailed, HostUnfit
from lab.host import freebsd
from lab.host.finding import Finding
from lab.host.system import hypervisor
from lab.host.zfs.source import Source
from tests.support.zfs_hosts import Programs

NO = CommandFailed(["kldstat"], 1)
MEMORY = """\
hw.physmem=17179869184
vm.stats.vm.v_page_size=4096
vm.stats.vm.v_free_count=524288
vm.stats.vm.v_inactive_count=262144
kstat.zfs.misc.arcstats.size=3221225472
kstat.zfs.misc.arcstats.c_min=1073741824
"""
_ASKED = (
    "sysctl -ei hw.physmem vm.stats.vm.v_page_size vm.stats.vm.v_free_count"
    " vm.stats.vm.v_inactive_count kstat.zfs.misc.arcstats.size kstat.zfs.misc.arcstats.c_min"
)
_CPU = (
    "sysctl -ei hw.model hw.vmm.vmx.initialized hw.vmm.vmx.cap.unrestricted_guest"
    " hw.vmm.svm.features"
)
_NET = "sysctl -ei net.link.tap.up_on_open net.inet.ip.forwarding net.link.bridge.pfil_member"
_AMD = "hw.model=AMD EPYC 7302P\n"
STATUS = """\
Status: Enabled for 12 days 03:04:05             Debug: Urgent

State Table                          Total             Rate
  current entries                       12
"""
RULES = 'nat on em0 inet from 10.0.0.0/8 to any -> (em0) round-robin\nrdr-anchor "lab/*" all\n'
_INTEL = "hw.model=Intel(R) Xeon(R) CPU\n"
_VMX = "hw.vmm.vmx.initialized=1\nhw.vmm.vmx.cap.unrestricted_guest=1\n"
READY: dict[str, str | CommandFailed] = {
    "kldstat -qm vmm": "",
    "kldstat -qn vmm": "",
    "kldstat -qm pf": "",
    _CPU: _INTEL + _VMX,
    _NET: "net.link.tap.up_on_open=1\nnet.inet.ip.forwarding=0\n",
    "pfctl -s info": STATUS,
    "pfctl -s nat": RULES,
    "vm version": "vm-bhyve: Bhyve virtual machine management v1.7.5\n",
    "sysrc -in vm_enable": "YES\n",
    "sysrc -in vm_dir": "zfs:zroot/vm\n",
    "zfs get -Hpo value mounted zroot/vm": "yes\n",
}


Answers = dict[str, str | CommandFailed | None]


def look(root: Path, **changes: str | CommandFailed | None) -> dict[str, Finding]:
    """As ``findings``."""
    return findings(root, changes)


def findings(
    root: Path, changes: Answers, *, published: bool = False, missing: str = ""
) -> dict[str, Finding]:
    """The findings of a host that is ready but for ``changes``, by a command's first words."""
    answers = dict(READY)
    for key, said in changes.items():
        (command,) = (c for c in READY if c.replace(" ", "_").replace("-", "").startswith(key))
        if said is None:
            del answers[command]
        else:
            answers[command] = said
    source = Source(root, Programs(answers))

    def find(module: str) -> object | None:
        return None if module == missing else module

    found = list(freebsd.check(source, published=published, find=find))
    assert len({one.topic for one in found}) == len(found)
    return {one.topic: one for one in found}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    firmware = tmp_path / freebsd.FIRMWARE.lstrip("/")
    firmware.parent.mkdir(parents=True)
    firmware.write_bytes(b"")
    return tmp_path


def test_a_host_that_is_ready(root: Path) -> None:
    found = look(root)
    assert {one.level for one in found.values()} == {"ok"}
    assert found["vm-bhyve"].value == "v1.7.5"


@pytest.mark.parametrize(
    ("changes", "topic", "advice"),
    [
        ({"kldstat_qm_vmm": NO, "kldstat_qn_vmm": NO}, "vmm", "kldload vmm"),
        ({"kldstat_qm_vmm": NO}, "vmm", "AMD-V"),
        ({"sysctl_ei_hw.model": _INTEL}, "vt-x", "VT-x"),
        ({"sysctl_ei_hw.model": _INTEL + _VMX.replace("guest=1", "guest=0")}, "vt-x", "newer"),
        ({"vm_version": None}, "vm-bhyve", "pkg install vm-bhyve"),
        ({"sysrc_in_vm_enable": "NO\n"}, "vm-bhyve", "sysrc vm_enable=YES"),
        ({"sysrc_in_vm_dir": ""}, "vm_dir", "sysrc vm_dir="),
        ({"sysrc_in_vm_dir": "/no/such"}, "vm_dir", "mkdir /no/such"),
        ({"zfs_get": "no\n"}, "vm_dir", "zfs mount zroot/vm"),
        ({"zfs_get": NO}, "vm_dir", "zfs create zroot/vm"),
    ],
)
def test_what_is_missing_is_told_with_a_command(
    root: Path, changes: Answers, topic: str, advice: str
) -> None:
    """Protects who sets a host up: one thing at a time, each with what to type."""
    found = look(root, **changes)
    assert found[topic].level == "fail"
    assert advice in found[topic].advice
    assert [one.topic for one in found.values() if one.level == "fail"] == [topic]


def test_without_firmware(tmp_path: Path) -> None:
    assert "pkg install bhyve-firmware" in look(tmp_path)["firmware"].advice


def test_an_amd_processor_is_the_module_s_to_judge(root: Path) -> None:
    for text in (_AMD, f"{_AMD}hw.vmm.svm.features=4294967295\n"):
        found = look(root, **{"sysctl_ei_hw.model": text})
        assert not {"vt-x", "amd-v"} & found.keys()
        assert {one.level for one in found.values()} == {"ok"}


@pytest.mark.parametrize(("bits", "level"), [("7295", "ok"), ("7294", "fail"), ("0", "fail")])
def test_nested_paging_of_an_amd_processor(root: Path, bits: str, level: str) -> None:
    found = look(root, **{"sysctl_ei_hw.model": f"{_AMD}hw.vmm.svm.features={bits}\n"})
    assert found["amd-v"].level == level


@pytest.mark.parametrize("text", ["", "hw.mod", "hw.model\n", "hw.model: Intel\n", "\0\n"])
def test_a_processor_that_is_not_told(root: Path, text: str) -> None:
    """Protects from taking half an answer for a processor that is fit."""
    found = look(root, **{"sysctl_ei_hw.model": text})
    assert found["processor"].level == "warn"
    assert not {"vt-x", "amd-v"} & found.keys()


@pytest.mark.parametrize("module", sorted(freebsd.PACKAGES))
def test_python_s_packages(root: Path, module: str) -> None:
    """Protects who has FreeBSD's Python, of which SQLite is no part."""
    found = findings(root, {}, missing=module)["python packages"]
    assert found.level == "fail"
    assert f"-{freebsd.PACKAGES[module]}" in found.advice
    assert found.advice.startswith("pkg install py3")


@pytest.mark.parametrize(
    ("changes", "what", "advice"),
    [
        ({"kldstat_qm_pf": NO}, "not loaded", "service pf start"),
        ({"pfctl_s_info": NO}, "pfctl", "root"),
        ({"pfctl_s_info": ""}, "disabled", "service pf start"),
        ({"pfctl_s_info": STATUS.replace("Enabled", "Disabled")}, "disabled", "service pf start"),
        ({"pfctl_s_info": STATUS[:12]}, "disabled", "service pf start"),
        ({"pfctl_s_nat": ""}, "does not lead", freebsd.ANCHOR_LINE),
        ({"pfctl_s_nat": NO}, "does not lead", freebsd.ANCHOR_LINE),
        ({"pfctl_s_nat": RULES.replace("rdr-", "nat-")}, "does not lead", freebsd.ANCHOR_LINE),
        ({"pfctl_s_nat": RULES.replace("lab/*", "lab")}, "does not lead", freebsd.ANCHOR_LINE),
        ({"pfctl_s_nat": RULES[:-8]}, "does not lead", freebsd.ANCHOR_LINE),
    ],
)
def test_pf(root: Path, changes: Answers, what: str, advice: str) -> None:
    """It matters to who publishes labs; all others get a note."""
    for published, level in ((True, "fail"), (False, "note")):
        text = "net.link.tap.up_on_open=1\nnet.inet.ip.forwarding=1\n"
        found = findings(root, {"sysctl_ei_net": text, **changes}, published=published)["pf"]
        assert found.level == level
        assert what in found.value
        assert advice in found.advice


@pytest.mark.parametrize("text", ["net.inet.ip.forwarding=0\n", "net.inet.ip.forw", ""])
def test_published_labs_need_a_host_that_passes_packets_on(root: Path, text: str) -> None:
    found = findings(root, {"sysctl_ei_net": text}, published=True)["net.inet.ip.forwarding"]
    assert found.level == "fail"
    assert "gateway_enable=YES" in found.advice


def test_pf_between_the_nodes_of_a_lab(root: Path) -> None:
    """Protects clusters from a pf.conf that blocks, which bridges apply to their members."""
    text = READY[_NET]
    assert isinstance(text, str)
    found = look(root, sysctl_ei_net=f"{text}net.link.bridge.pfil_member=1\n")
    assert "pfil_member=0" in found["net.link.bridge.pfil_member"].advice


def test_a_host_that_passes_packets_on(root: Path) -> None:
    """Protects networks from labs, and labs from networks."""
    found = look(root, sysctl_ei_net="net.link.tap.up_on_open=0\nnet.inet.ip.forwarding=1\n")
    assert found["net.inet.ip.forwarding"].level == "note"
    assert "vm init" in found["net.link.tap.up_on_open"].advice


def test_memory() -> None:
    """Free and inactive pages, and what ZFS's cache gives back."""
    available, total = freebsd.memory(Source(run=Programs({_ASKED: MEMORY})))
    assert (available >> 30, total >> 30) == (2 + 1 + 2, 16)


def test_memory_without_zfs() -> None:
    text = MEMORY.partition("kstat")[0]
    assert freebsd.memory(Source(run=Programs({_ASKED: text})))[0] >> 30 == 3


@pytest.mark.parametrize("said", ["", "hw.physmem=1\n", "nonsense", "hw.physmem: 17179869184\n"])
def test_memory_that_cannot_be_read(said: str) -> None:
    with pytest.raises(HostUnfit, match="memory is not known"):
        freebsd.memory(Source(run=Programs({_ASKED: said})))


def test_what_guests_run_under() -> None:
    assert (hypervisor("freebsd"), hypervisor("linux")) == ("bhyve", "libvirt")
