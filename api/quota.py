"""What a token's project may have."""

from __future__ import annotations

from api.auth import Caller
from api.work import spec_of
from lab.errors import LimitReached
from lab.spec import LabSpec, format_size
from lab.state.store import Store


def check_quota(store: Store, caller: Caller, spec: LabSpec) -> None:
    """Raise LimitReached if the caller's project had more than it may with ``spec``.

    Labs that are being made count. To be sure, record the job in the same transaction.
    """
    token = caller.token
    if token.max_labs is token.max_nodes is token.max_memory is None:
        return
    project = token.project
    recorded = [lab for lab in store.labs.all() if lab.project == project]
    made = {lab.job for lab in recorded}
    coming = [
        spec_of(job.request)
        for job in store.jobs.open(project)
        if job.kind == "create" and job.id not in made
    ]
    sizes = [(lab.node_count, lab.memory) for lab in recorded]
    sizes += [(one.nodes, one.size.memory) for one in [*coming, spec]]
    nodes, memory = sum(n for n, _ in sizes), sum(n * m for n, m in sizes)
    for word, limit, wanted in (
        ("labs", token.max_labs, len(sizes)),
        ("nodes", token.max_nodes, nodes),
        ("memory", token.max_memory, memory),
    ):
        if limit is not None and wanted > limit:
            shown = [format_size(n) if word == "memory" else str(n) for n in (limit, wanted)]
            raise LimitReached(
                f"the project {project} may have {shown[0]} of {word}, with this lab it had"
                f" {shown[1]}",
                hint="remove a lab, or ask for less",
            )
