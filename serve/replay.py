"""What the open journal says of the past, put in order for a learner that starts. Pure.

What it leaves out: anything that was sealed (finished by definition) and what the committed versions say.
"""

from dataclasses import dataclass, field

from storage.journal import JournalEvent
from storage.records import Disposition, Exchange, NextState, Sample, Verdict

SUPERSEDED = "superseded"  # a sample made way for one from feedback; its turn goes on


@dataclass(frozen=True, kw_only=True)
class Past:
    """The events of the open segments, each once."""

    exchanges: list[Exchange] = field(default_factory=list)  # by arrival
    next_states: list[NextState] = field(default_factory=list)  # by arrival
    verdicts: dict[str, Verdict] = field(default_factory=dict)  # by next state id, the last one
    samples: list[Sample] = field(default_factory=list)  # neither superseded nor disposed of
    ended: list[Disposition] = field(default_factory=list)  # of turns


def replay(events: list[JournalEvent]) -> Past:
    """Sort journal events. Those written twice (a crash between writing and remembering) count once."""
    exchanges: dict[str, Exchange] = {}
    next_states: dict[str, NextState] = {}
    samples: dict[str, Sample] = {}
    past = Past()
    gone: set[str] = set()
    for event in events:
        record = event.record
        if event.kind == "exchange":
            exchanges[record.exchange_id] = record
        elif event.kind == "next_state":
            next_states[record.next_state_id] = record
        elif event.kind == "verdict":
            past.verdicts[record.next_state_id] = record
        elif event.kind == "sample":
            samples[record.sample_id] = record
        elif event.kind == "disposition":
            if record.sample_id is not None:
                gone.add(record.sample_id)
            if record.reason != SUPERSEDED:
                past.ended.append(record)
    past.exchanges.extend(sorted(exchanges.values(), key=lambda exchange: (exchange.received_at, exchange.exchange_id)))
    past.next_states.extend(sorted(next_states.values(), key=lambda state: (state.arrived_at, state.next_state_id)))
    past.samples.extend(sample for sample in samples.values() if sample.sample_id not in gone)
    return past
