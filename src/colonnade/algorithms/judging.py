"""What coordinating roles do alike: evaluate when it is time, and end with one last evaluation."""

from colonnade.algorithms.evaluation import Evaluated, Evaluation
from colonnade.algorithms.progress import Progress
from colonnade.algorithms.table import Staleness
from colonnade.protocol.events import Effect

__all__ = ["Judging"]


class Judging:
    """A role that says when to evaluate; `_advance` is how it goes on afterwards."""

    evaluation: Evaluation
    progress: Progress
    staleness: Staleness
    present: dict[str, bool]  # parties within reach

    def _evaluate(self) -> list[Effect]:
        return [] if self.evaluation.running or self.progress.ending else self.evaluation.begin(self.present)

    def _end(self, reason: str) -> list[Effect]:
        """One last evaluation, then the end."""
        if self.progress.ending:
            return []
        self.progress.ending = reason
        return [] if self.evaluation.running else self.evaluation.begin(self.present)

    def _evaluated(self, result: Evaluated) -> list[Effect]:
        self.evaluation.running = False
        report = self.progress.report(result, self.staleness.take_means(), self.evaluation.missing)
        return [*report, *self._advance()]

    def _advance(self) -> list[Effect]:
        raise NotImplementedError
