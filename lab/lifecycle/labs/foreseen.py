"""What is known of an upgrade before its first step: who will be locked out, what is not known.

By facts of versions (``lab.blueprints.dialects``): no guest has the new server yet. The server
itself is asked in each step, before it starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.blueprints.dialects import locks_out, removed
from lab.config.enginefile import family_of
from lab.errors import LabError
from lab.lifecycle.core.context import Context
from lab.lifecycle.images.ready import Image
from lab.lifecycle.labs import upgrade_messages
from lab.lifecycle.nodes.nodes import Node
from lab.state.records import LabRecord

_SECONDS = 60.0
_ACCOUNTS = 100
_WIDTH = 500
WHO = (
    "SELECT CONCAT(user, '@', host, ' (', plugin, ')') FROM mysql.user"  # noqa: S608
    f" WHERE account_locked = 'N' AND plugin IN ({{plugins}}) LIMIT {_ACCOUNTS + 1}"
)
"""Accounts of such plugins that can log in now; one more than are reported."""


def foreseen(ctx: Context, record: LabRecord, nodes: Sequence[Node], new: Image) -> tuple[str, ...]:
    """What is to be expected of servers of ``new`` on ``nodes``, which run, a line each."""
    title = f"{family_of(new.engine.name).title} {new.engine.version}"
    return (*_options(record, nodes, new, title), *_accounts(ctx, record, nodes[0], new, title))


def _options(record: LabRecord, nodes: Sequence[Node], new: Image, title: str) -> list[str]:
    """The user's options that the new servers do not know."""
    found = dict[str, str]()
    for node in nodes:
        own = upgrade_messages.option_names(record.plan.options.option_file(node.role))
        gone = removed(node.release, new.engine.release)
        found |= {
            name: instead for name, instead in gone.items() if upgrade_messages.plain(name) in own
        }
    return [
        f"{title} does not know the option {name}"
        + (f": {instead} took its place" if instead else "")
        for name, instead in sorted(found.items())
    ]


def _accounts(ctx: Context, record: LabRecord, node: Node, new: Image, title: str) -> list[str]:
    """The accounts that cannot log in to the new servers, as a server has them now."""
    text = new.engine.config + record.plan.options.option_file(node.role)
    plugins = locks_out(new.engine.release, text)
    if not plugins:
        return []
    question = WHO.format(plugins=", ".join(f"'{plugin}'" for plugin in plugins))
    channel = ctx.hypervisor.channel(node.guest)
    try:
        said = channel.run(["/usr/lib/lab/sql"], stdin=f"{question}\n".encode(), timeout=_SECONDS)
    except LabError as error:
        return [f"it is not known which accounts cannot log in to {title}: {error}"]
    found = [one[:_WIDTH] for one in said.decode(errors="replace").splitlines()]
    lines = [f"{one} cannot log in to {title}" for one in found[:_ACCOUNTS]]
    return [*lines, "there are more such accounts"] if len(found) > _ACCOUNTS else lines
