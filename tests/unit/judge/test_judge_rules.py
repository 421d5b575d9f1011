"""The rules judge: its accuracy on labelled replies, feedback, and outcomes of tools."""

import asyncio
import re
from collections import Counter

import pytest

from flows.people import replies as student
from judge import JudgeInput, JudgeSettings, make_judge
from judge.accuracy import PARTS, labelled_replies, main, measure
from judge.outcomes import read_outcome
from judge.replies import read_reply
from judge.rules import RulesJudge
from storage.records import NextState

FLOORS = {"development": 0.97, "held_out": 0.92}


def _state(content: str, role: str = "user", score: float | None = None) -> NextState:
    return NextState(
        next_state_id="n", exchange_id="x", role=role, content=content, source_exchange_id=None, arrived_at=0.0,
        score=score,
    )  # type: ignore[arg-type]  # fmt: skip


def _judge(state: NextState, question: str = "What is 2 + 2?"):
    item = JudgeInput(exchange_id="x", question=question, answer="5", next_state=state)
    return asyncio.run(make_judge(JudgeSettings()).judge(item))


@pytest.mark.parametrize("part", PARTS)
async def test_accuracy_has_a_floor(part):
    result = await measure(RulesJudge(), labelled_replies(), part)
    assert result.share >= FLOORS[part], f"{result.share:.3f}"
    flipped = sum(n for (label, reward), n in result.confusion.items() if label * (reward or 0) == -1)
    assert flipped / result.total <= 0.02, "praise taken for complaint or the other way round"


def test_the_labelled_replies_are_what_they_claim():
    rows = labelled_replies()
    assert len(rows) >= 300 and sum(row.part == "held_out" for row in rows) >= 100
    assert len({row.reply for row in rows}) == len(rows)
    needed = {"approval", "correction", "reask", "topic", "thanks_but", "sarcasm", "tool_error", "new_task"}
    assert needed <= {row.category for row in rows}
    languages = Counter(row.language for row in rows)
    assert all(languages[code] >= 12 for code in ("en", "de", "fr", "es", "pt", "it", "zh", "ja", "ru")), languages


def test_the_scripted_student_says_none_of_them():
    remarks = (remark for remarks in student.REMARKS.values() for remark in remarks)
    says = {*student.PRAISE, *student.COMPLAINTS, *remarks, *student.WISHES}
    plain = {_plain(sentence) for text in says for sentence in (text, *re.split(r"(?<=[.!?])\s", text))}
    shared = [row.reply for row in labelled_replies() if _plain(row.reply) in plain]
    assert not shared


def _plain(text: str) -> str:
    return re.sub(r"[\W_]+", " ", text.lower()).strip()


def test_the_command_prints_both_tables(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "development" in out and "held_out" in out and "judged +1" in out


@pytest.mark.parametrize(
    ("score", "text", "reward"),
    [(1.0, "", 1), (-1.0, "", -1), (1.0, "this is wrong", 1), (-1.0, "perfect", -1), (0.0, "perfect", 0), (0.1, "", 0),
     (0.5, "", 1), (-0.5, "", -1)],
)  # fmt: skip
def test_the_score_of_feedback_decides(score, text, reward):
    verdict = _judge(_state(text, "feedback", score))
    assert verdict.reward == reward and "given by the user" in verdict.evaluative[0].text


def test_feedback_in_words_alone_is_read_as_a_reply_and_hints_come_with_scores_too():
    assert _judge(_state("Please start with the number.", "feedback")).reward == -1
    verdict = _judge(_state("Start with the number, please.", "feedback", -1.0))
    assert verdict.hint == "Start with the number, please."
    assert _judge(_state("Start with the number, please.", "feedback", 1.0)).hint is None


@pytest.mark.parametrize(
    ("reply", "hint"),
    [
        ("Please don't open with Great question, start with the number.",
         "Please don't open with Great question, start with the number."),
        ("No, that's wrong. Use metric units instead.", "Use metric units instead."),
        ("Thanks, but please write it in British English.", "Please write it in British English."),
        ("Nein, viel zu lang. Bitte höchstens drei Sätze.", "Bitte höchstens drei Sätze."),
        ("太长了。请只给出结果，不要解释过程。", "请只给出结果，不要解释过程。"),
        ("Still fails.", None),
    ],
)  # fmt: skip
def test_hints_are_the_users_own_directive_sentences(reply, hint):
    verdict = _judge(_state(reply))
    assert verdict.reward == -1 and verdict.hint == hint
    assert len(verdict.directive) == (hint is not None)


def test_praise_never_brings_a_hint():
    assert _judge(_state("Perfect, please keep this for later.")).hint is None


@pytest.mark.parametrize(
    ("reply", "question", "score"),
    [
        ("Wie spät ist es in Tokio gerade?", "Wie spät ist es in Tokio?", -1),
        ("And in Osaka?", "What time is it in Tokyo?", 0),
        ("", "What time is it?", 0),
        ("```\nerror: wrong\n```", "Fix it", 0),
        ("[Sun 2026-11-29 14:27 UTC] No, not that one.", "x", -1),
        ("> No, that is wrong\nPerfect, thanks.", "x", 1),
    ],
)
def test_corners_of_replies(reply, question, score):
    assert read_reply(reply, question).score == score


@pytest.mark.parametrize(
    ("output", "score"),
    [
        ('{"exit_code": 0, "stderr": "warning: error: ignored"}', 1),
        ("collected 3 items\n== 3 passed, 1 warning in 0.1s ==\nexit code: 0", 1),
        ("3 passed, 1 failed\nexit code: 0", -1),
        ("0 failed, 3 passed", 1),
        ("x" * 50_000 + "\n[exit code: 2]", -1),
        ("", 0),
        ('a:\n{"ok": true}\n\nb:\n{"ok": false}', -1),
        ("bash:\nok\n\npython:\nTraceback (most recent call last):\n  File ...\nValueError: no", -1),
    ],
)
def test_outcomes(output, score):
    assert read_outcome(output).score == score
    assert _judge(_state(output, "tool")).reward == score


def test_every_vote_names_its_rule():
    verdict = _judge(_state("No, that's wrong."))
    assert verdict.evaluative[0].text.startswith("rule: correction:")
    assert verdict.prompt_version == "rules/1+phrases/1"
