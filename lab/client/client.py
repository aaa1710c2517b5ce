"""The verbs of a service, from Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast

from lab.client import credentials
from lab.client.ca import check_pem
from lab.client.heartbeat import alive
from lab.client.jobs import AT_ONCE, Jobs
from lab.client.models import read, read_lab
from lab.client.run import run, settable
from lab.client.snapshots import Snapshots
from lab.client.transport import Wire, path_of
from lab.config.labfile import KEYS, LabValues, merge
from lab.errors import InvalidSpec, NotFound, NotReady
from lab.lifecycle.nodes.ssh import SshLogin
from lab.progress import Listener
from lab.request import Request, body_of
from lab.requests.host import CollectGarbage
from lab.requests.images import BuildImage, BuildTemplate, DeleteImage, DeleteTemplate
from lab.requests.labs import (
    Action,
    BranchLab,
    ChangeLab,
    CreateLab,
    DeleteLab,
    Promote,
    ResetLab,
    RollBack,
    RunProgram,
    UpgradeLab,
    power,
)
from lab.schedule import ORIGIN
from lab.spec import LabSpec
from lab.views.catalog import EngineView, ImageView, TemplateView
from lab.views.host import GcReport
from lab.views.labs import Lab, Preview
from lab.views.nodes import LogLines, Output
from lab.views.upgrades import UpgradeView
from lab.wait import Deadline, attempts

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lab.client.archives import Archives
    from lab.client.datasets import Datasets
    from lab.client.hosts import Hosts
    from lab.client.tokens import Tokens

_BUNDLE = 300.0
"""Seconds that a bundle may take."""
_FINAL = ("stopped", "failed", "removing", "unrecorded")
"""States that do not change by waiting."""


class LabFields(LabValues, total=False):
    """Keyword arguments of ``Client.create``, for editors and type checkers, as a test ensures.

    What lab.toml may say, and the further fields of ``CreateLab``.
    """

    cold: bool
    protected: bool
    keep_failed: bool
    heartbeat: float | None
    idle: float | None
    asleep_after: float | None
    accept_pooled_name: bool
    host: str
    on_host_lost: Literal["", "fail", "recreate"]


class Client:
    """A service and our token for it; closes its connections at the end of a ``with`` block.

    ``url`` empty: LAB_URL. ``token`` empty: LAB_TOKEN, else the file that docs/client.md names.
    ``patience``: seconds of retries while the service is away. All methods raise the errors that
    the service reports, and HostUnfit if it cannot be reached.
    """

    def __init__(self, url: str = "", token: str = "", *, patience: float = 60.0) -> None:
        self.url = credentials.check_url(url) if url else credentials.find_url()
        found = credentials.check_token(token) if token else credentials.find_token()
        self._wire = Wire(self.url, found, patience=patience)
        self.jobs = Jobs(self._wire)
        self.snapshots = Snapshots(self._wire, self.jobs)
        self._token = found

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; labs stay."""
        self._wire.close()

    def run(
        self, request: Request, *, timeout: float | None = None, listener: Listener | None = None
    ) -> Any:
        """Perform a request of ``lab.requests``, and return what it makes, as the methods below do.

        ``timeout``: seconds for all of it. ``listener`` is called with its steps.
        """
        return run(self._wire, self.jobs, request, timeout, listener)

    @contextmanager
    def lab(
        self,
        wanted: str | LabSpec,
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
        **values: Unpack[LabFields],
    ) -> Iterator[Lab]:
        """A lab for the block, created as by ``create`` and removed at its end in any case.

        ``heartbeat``: heartbeats are sent, and the lab outlives this process by so many seconds at
        most. They count as use, for ``idle``.
        """
        created = self.create(wanted, timeout=timeout, listener=listener, **values)
        try:
            with alive(self.heartbeat, created.name, values.get("heartbeat")):
                yield created
        finally:
            with suppress(NotFound):  # its lease expired
                self.delete(created.name, force=True)

    def create(
        self,
        wanted: str | LabSpec,
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
        **values: Unpack[LabFields],
    ) -> Lab:
        """Create a lab and return it when it is ready.

        ``wanted``: a blueprint, then with ``values`` as in lab.toml; or a whole LabSpec. Further
        ``values`` are the fields of ``CreateLab``: ``heartbeat``, ``idle`` and ``asleep_after``, in
        seconds, ``cold``, ``protected``, ``keep_failed``. ``timeout``: seconds for all of it,
        including a template; None: no limit. ``listener`` is called with its steps. If this raises,
        the job is cancelled and undone; with ``keep_failed`` a failed lab stays as it is until its
        lease ends.

        Raises what ``lab up`` does, also Forbidden and LimitReached; NotReady after ``timeout``.
        """
        found: Lab = self.run(_asked(wanted, values), timeout=timeout, listener=listener)
        return found

    def preview(self, wanted: str | LabSpec, **values: Unpack[LabFields]) -> Preview:
        """What ``create`` would create now; nothing is changed. Raises as it does."""
        body = body_of(_asked(wanted, values))
        return read(self._wire.ask("POST", "/v1/preview", body=body, twice=True).body, Preview)

    def get(self, name: str) -> Lab:
        """A lab; raises NotFound."""
        return read_lab(self._wire.ask("GET", path_of("labs", name)).body)

    def labs(self, *, state: str = "", blueprint: str = "", project: str = "") -> list[Lab]:
        """All labs, by name; those of a state, of a blueprint or (for admins) of a project."""
        given = {"state": state, "blueprint": blueprint, "project": project}
        query = {name: value for name, value in given.items() if value}
        return [read_lab(item) for item in self._wire.items("/v1/labs", query)]

    def delete(
        self,
        name: str,
        *,
        force: bool = False,
        defer: bool = False,
        timeout: float | None = None,
        listener: Listener | None = None,
    ) -> bool:
        """Remove a lab; whether it is gone. ``force``: a protected one as well.

        ``defer``: of one with branches the nodes now, and the rest with the last branch. Raises
        NotFound, Conflict (protected, busy, branches), NotReady (``timeout``; the job continues).
        """
        asked = DeleteLab(lab=name, force=force, defer=defer)
        found: bool = self.run(asked, timeout=timeout, listener=listener)
        return found

    def extend(self, name: str, ttl: float) -> Lab:
        """Give a lab a lease of ``ttl`` seconds from now on; raises NotFound, Forbidden."""
        found: Lab = self.run(ChangeLab(lab=name, ttl=ttl))
        return found

    def protect(self, name: str, *, protected: bool = True) -> Lab:
        """Protect a lab from removal without force, or end that; raises NotFound."""
        found: Lab = self.run(ChangeLab(lab=name, protected=protected))
        return found

    def heartbeat(self, name: str) -> Lab:
        """Send a heartbeat; raises NotFound, and Conflict if the lab was created without."""
        return read_lab(self._wire.ask("POST", path_of("labs", name, "heartbeat"), twice=True).body)

    def wait(self, name: str, *, timeout: float = 600.0) -> Lab:
        """Return a lab once all its nodes are ready.

        Raises NotFound; NotReady after ``timeout`` seconds, or if the lab is stopped or failed.
        """
        deadline = Deadline.after(timeout)
        for _ in attempts(deadline, first=0.1, most=1.0):
            found = self._made(name, min(AT_ONCE, deadline.left))
            if found.state == "ready":
                return found
            if found.state == "asleep":
                self.power("wake", name, timeout=deadline.left)
            if found.state in _FINAL:
                raise NotReady(
                    f"lab {name} is {found.state} and will not become ready by itself",
                    hint=f"`lab start {name}` or `lab down {name}`",
                )
        missing = [node.name for node in found.nodes if node.state != "ready"]
        raise NotReady(
            f"timed out: lab {name} is still {found.state} after {timeout:g} s",
            details=[f"not ready: {', '.join(missing)}"] if missing else [],
        )

    def power(
        self,
        action: Action,
        name: str,
        node: str = "",
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
    ) -> Lab:
        """``start``, ``stop``, ``restart`` or ``kill`` a lab or a node, and return the lab.

        Raises NotFound, Conflict, NotReady.
        """
        asked = power(action, lab=name, node=node)
        found: Lab = self.run(asked, timeout=timeout, listener=listener)
        return found

    def promote(
        self,
        name: str,
        node: str,
        *,
        force: bool = False,
        timeout: float | None = None,
        listener: Listener | None = None,
    ) -> Lab:
        """Have ``node`` take the writes of a lab, and return the lab.

        ``force``: also without the node that takes them now, if that does not answer. Raises
        NotFound, InvalidSpec, Conflict, NotReady.
        """
        asked = Promote(lab=name, node=node, force=force)
        found: Lab = self.run(asked, timeout=timeout, listener=listener)
        return found

    def upgrade(
        self,
        name: str,
        to: str,
        node: str = "",
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
        **fields: Any,
    ) -> UpgradeView:
        """Replace the servers of a lab, or one, by those of the engine ``to``; what became of each.

        ``fields``: those of ``UpgradeLab``, such as ``keep_failed=True``. A step that failed is in
        the report (``failed``). Raises NotFound, InvalidSpec, Conflict, HostUnfit, NotReady.
        """
        asked = UpgradeLab(lab=name, to=to, node=node, **settable(UpgradeLab, fields))
        found: UpgradeView = self.run(asked, timeout=timeout, listener=listener)
        return found

    def rollback(
        self,
        name: str,
        to: str = ORIGIN,
        node: str = "",
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
        **fields: Any,
    ) -> Lab:
        """Put a lab, or a node, back to a snapshot (by default its state after creation).

        ``fields``: those of ``RollBack``, such as ``cold=True``; else the nodes of a lab resume
        from the snapshot's RAM where it has it. Raises NotFound, Conflict, NotReady.
        """
        asked = RollBack(lab=name, to=to, node=node, **settable(RollBack, fields))
        found: Lab = self.run(asked, timeout=timeout, listener=listener)
        return found

    def reset(
        self,
        name: str,
        to: str = "",
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
    ) -> Lab:
        """Put a lab back to a snapshot, by its standby if there is one; the next is made then.

        ``to``: by default the snapshot that the lab was put back to last, its origin at first.
        Raises as ``rollback`` does.
        """
        found: Lab = self.run(ResetLab(lab=name, to=to), timeout=timeout, listener=listener)
        return found

    def branch(
        self,
        name: str,
        new: str = "",
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
        **fields: Any,
    ) -> list[Lab]:
        """Create labs that are clones of a lab, and return them when all are ready.

        ``new``: their name, numbered if there are several. ``fields``: those of ``BranchLab``, such
        as ``count=3``, or ``at``: the snapshot that is cloned. ``timeout``: seconds for all of it.
        If this raises, the job is cancelled and no branch is left. Raises NotFound, InvalidSpec,
        Conflict, Forbidden, LimitReached, HostUnfit, NotReady.
        """
        asked = BranchLab(lab=name, name=new, **settable(BranchLab, fields))
        found: list[Lab] = self.run(asked, timeout=timeout, listener=listener)
        return found

    def execute(
        self, name: str, node: str, argv: Sequence[str], *, stdin: str = "", timeout: float = 60.0
    ) -> str:
        """Run a program in a node as root, for at most ``timeout`` seconds; returns its output.

        Raises NotFound, Forbidden, CommandFailed (with its status), NotReady.
        """
        body = body_of(RunProgram(argv=tuple(argv), stdin=stdin, timeout=timeout))
        path = path_of("labs", name, "nodes", node, "exec")
        answer = self._wire.ask("POST", path, body=body, allow=timeout)
        return read(answer.body, Output).stdout

    def ssh_login(self, name: str, node: str) -> SshLogin:
        """Key and host key for ssh to a node, through a tunnel; raises NotFound, Forbidden."""
        answer = self._wire.ask("GET", path_of("labs", name, "nodes", node, "ssh"))
        return read(answer.body, SshLogin)

    def logs(self, name: str, node: str, source: str = "engine", *, lines: int = 100) -> list[str]:
        """The last lines of a node's log: engine, journal or console."""
        query = {"source": source, "lines": lines}
        answer = self._wire.ask("GET", path_of("labs", name, "nodes", node, "logs"), query=query)
        return list(read(answer.body, LogLines).lines)

    def bundle(self, name: str) -> bytes:
        """What is known of a lab as a bundle, a tar archive compressed with zstd."""
        return self._wire.content(path_of("labs", name, "bundle"), allow=_BUNDLE)

    def job_bundle(self, job: str) -> bytes:
        """What was known of the lab that a job could not make, as ``bundle``; raises NotFound."""
        return self._wire.content(path_of("jobs", job, "bundle"), allow=_BUNDLE)

    def gc(self, **fields: Any) -> GcReport:
        """Remove what `lab gc` removes, for admins; ``fields``: those of ``CollectGarbage``."""
        found: GcReport = self.run(CollectGarbage(**settable(CollectGarbage, fields)))
        return found

    def ca(self) -> str:
        """The CA certificate of the database servers, as PEM."""
        return check_pem(self._wire.ask("GET", path_of("host", "ca"), plain=True).body)

    def follow(
        self, name: str, node: str, source: str = "engine", *, lines: int = 100
    ) -> Iterator[str]:
        """Yield the lines of ``logs``, then each new line, until the node or the service ends."""
        query = {"source": source, "lines": max(1, lines)}
        return self._wire.lines(path_of("labs", name, "nodes", node, "logs"), query)

    @property
    def archives(self) -> Archives:
        """Export and import of images and templates, for administrators."""
        from lab.client.archives import Archives

        return Archives(self.url, self._token)

    @property
    def datasets(self) -> Datasets:
        """Datasets: data that labs begin with."""
        from lab.client.datasets import Datasets

        return Datasets(self._wire, self.jobs, self.url, self._token)

    @property
    def tokens(self) -> Tokens:
        """Tokens, for administrators."""
        from lab.client.tokens import Tokens

        return Tokens(self._wire)

    @property
    def hosts(self) -> Hosts:
        """The hosts of the fleet that the service belongs to."""
        from lab.client.hosts import Hosts

        return Hosts(self._wire)

    def engines(self) -> list[EngineView]:
        """All engines, each with its series."""
        return read(self._wire.ask("GET", "/v1/engines").body, list[EngineView])

    def images(self) -> list[ImageView]:
        """All images."""
        return read(self._wire.ask("GET", "/v1/images").body, list[ImageView])

    def image(self, which: str) -> ImageView:
        """An image, by key or recipe; raises NotFound."""
        return read(self._wire.ask("GET", path_of("images", which)).body, ImageView)

    def build_image(
        self,
        recipe: str,
        *,
        rebuild: bool = False,
        timeout: float | None = None,
        listener: Listener | None = None,
    ) -> ImageView:
        """Build an image, for admins; ``rebuild``: even if it exists. The rest as ``create``."""
        asked = BuildImage(recipe=recipe, rebuild=rebuild)
        found: ImageView = self.run(asked, timeout=timeout, listener=listener)
        return found

    def remove_image(self, which: str, *, listener: Listener | None = None) -> None:
        """Remove an image, for admins, by key or recipe; raises NotFound, Conflict (in use)."""
        self.run(DeleteImage(which=which), listener=listener)

    def templates(self) -> list[TemplateView]:
        """All templates."""
        return read(self._wire.ask("GET", "/v1/templates").body, list[TemplateView])

    def build_template(
        self,
        wanted: str | LabSpec,
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
        **values: Unpack[LabValues],
    ) -> TemplateView:
        """Build the template for such labs unless it exists, for admins; as ``create``."""
        asked = BuildTemplate.of(_spec(wanted, values))
        found: TemplateView = self.run(asked, timeout=timeout, listener=listener)
        return found

    def remove_template(self, key: str, *, listener: Listener | None = None) -> None:
        """Remove a template, for admins; raises NotFound, Conflict (in use)."""
        self.run(DeleteTemplate(key=key), listener=listener)

    def _made(self, name: str, wait: float) -> Lab:
        """A lab, once its creation has ended, or as it is after ``wait`` seconds."""
        query = {"wait": int(wait)} if wait >= 1 else {}
        return read_lab(self._wire.ask("GET", path_of("labs", name), query=query, allow=wait).body)


def _asked(wanted: str | LabSpec, values: Mapping[str, Any]) -> CreateLab:
    """The request of a lab; raises InvalidSpec."""
    said = {name: value for name, value in values.items() if name in KEYS}
    more = {name: value for name, value in values.items() if name not in KEYS}
    return CreateLab.of(_spec(wanted, said), **settable(CreateLab, more))


def _spec(wanted: str | LabSpec, values: Mapping[str, Any]) -> LabSpec:
    """The specification of a lab; raises InvalidSpec."""
    if isinstance(wanted, str):
        return merge({}, cast("LabValues", {**values, "blueprint": wanted}))
    if values:
        raise InvalidSpec(f"a LabSpec cannot be combined with {', '.join(values)}")
    return wanted
