"""Which samples make the next batch: the pool of untrained samples, its order, its limits, its quarantine.

Pure: the clock is passed in. What was consumed is never remembered here, it is read from the committed versions.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from storage.records import Disposition, Sample


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """When a step is asked for."""

    batch_size: int = 16  # samples a step
    batch_limit_s: float = 900.0  # a smaller batch goes after this time ...
    batch_least: int = 4  # ... with at least so many (the trainer scales its loss by n / batch_size)
    max_version_lag: int = 8  # versions between a sample and the head
    skips_before_quarantine: int = 2


class Pool:
    """Samples that wait for a step, oldest first. Not thread-safe: one owner."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self._samples: dict[str, Sample] = {}
        self._skips: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._samples)

    def __contains__(self, sample_id: str) -> bool:
        return sample_id in self._samples

    def add(self, sample: Sample) -> None:
        """Take a sample in; the same one twice is one."""
        assert sample.counts, f"sample {sample.sample_id} carries nothing to learn"
        self._samples[sample.sample_id] = sample

    def remove(self, sample_ids: Iterable[str]) -> list[Sample]:
        """Take samples out, and return those that were in."""
        gone = [self._samples.pop(sample_id) for sample_id in sample_ids if sample_id in self._samples]
        for sample in gone:
            self._skips.pop(sample.sample_id, None)
        return gone

    def of_exchange(self, exchange_id: str) -> Sample | None:
        """The waiting sample of an exchange."""
        return next((s for s in self._samples.values() if s.exchange_id == exchange_id), None)

    def expire(self, head: int, lineage: Iterable[int], now: float) -> list[Disposition]:
        """Take out what is too old for the head version, or sampled by a version that is no ancestor of it."""
        ancestors = set(lineage)
        gone = []
        for sample in list(self._samples.values()):
            lag = head - sample.version
            strangers = {span.version for span in sample.versions if span.end > span.start} - ancestors
            if lag > self.settings.max_version_lag:
                why = "too old", f"sampled by version {sample.version}, the head is {head}: more than " \
                    f"{self.settings.max_version_lag} versions"  # fmt: skip
            elif strangers:
                why = "other branch", f"sampled by version {min(strangers)}, which is no ancestor of the head {head}"
            else:
                continue
            self.remove([sample.sample_id])
            gone.append(_disposition(sample, *why, now))
        return gone

    def due(self, now: float) -> list[Sample]:
        """The next batch, or [] while there is none."""
        waiting = sorted(self._samples.values(), key=lambda sample: (sample.created_at, sample.sample_id))
        full = self.settings.batch_size
        if len(waiting) >= full:
            return waiting[:full]
        overdue = waiting and now - waiting[0].created_at >= self.settings.batch_limit_s
        if overdue and len(waiting) >= self.settings.batch_least:
            return waiting
        return []

    def skipped(self, sample_ids: Iterable[str], why: str, now: float) -> list[Disposition]:
        """Count a skipped batch against its samples; those with too many are quarantined and returned."""
        gone = []
        for sample_id in sample_ids:
            if sample_id not in self._samples:
                continue
            self._skips[sample_id] = self._skips.get(sample_id, 0) + 1
            if self._skips[sample_id] >= self.settings.skips_before_quarantine:
                count = self._skips[sample_id]
                [sample] = self.remove([sample_id])
                gone.append(_disposition(sample, "quarantined", f"in {count} skipped batches, last: {why}", now))
        return gone


def _disposition(sample: Sample, reason: str, detail: str, now: float) -> Disposition:
    return Disposition(
        exchange_id=sample.exchange_id, sample_id=sample.sample_id, reason=reason, detail=detail, decided_at=now
    )
