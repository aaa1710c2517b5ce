"""The results of benchmarks that this host keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.values import dataclass

if TYPE_CHECKING:
    from lab.lifecycle.core.context import Context
    from lab.views.benches import BenchSummary, BenchView, CompareView


@dataclass(frozen=True)
class Benches:
    """What is recorded in ``context``; raises NotFound, and as the store does."""

    context: Context

    def summaries(self) -> list[BenchSummary]:
        """All results, oldest first."""
        from lab.lifecycle.bench import results

        return results.summaries(self.context)

    def show(self, which: str) -> BenchView | CompareView:
        """A result, by its id, or the newest of a label."""
        from lab.lifecycle.bench import results

        return results.show(self.context, which)

    def runs(self, workload: str = "", label: str = "") -> list[BenchView]:
        """The runs of a workload, of a label, oldest first."""
        from lab.lifecycle.bench import results

        return results.runs(self.context, workload, label)

    def remove(self, which: str) -> None:
        """Remove a result, by its id; raises NotFound."""
        from lab.lifecycle.bench import results

        results.remove(self.context, which)
