"""Settings, the factory, and what importing costs."""

import subprocess
import sys

import pytest

from judge import JudgeSettings, make_judge


def test_factory():
    assert make_judge(JudgeSettings()).name == "rules/1"
    assert make_judge(JudgeSettings(judge="verifiable")).name == "verifiable/1"
    assert make_judge(JudgeSettings(judge="llm", base_url="http://127.0.0.1:1/v1", model="m")).name == "llm/1:m"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"judge": "oracle"}, "one of rules, llm, verifiable"),
        ({"judge": "llm"}, "needs base_url and model"),
        ({"votes": 0}, "at least 1"),
        ({"temperature": 3.0}, "between 0 and 2"),
        ({"timeout_s": 0.0}, "above 0"),
        ({"hint_choice": "shortest"}, "one of longest, overlap"),
        ({"hint_choice": "overlap"}, "use 'longest'"),
    ],
)
def test_wrong_settings_say_what_is_allowed(values, said):
    with pytest.raises(ValueError, match=said):
        JudgeSettings(**values)


def test_from_mapping_refuses_unknown_keys():
    assert JudgeSettings.from_mapping({"votes": 3}).votes == 3
    with pytest.raises(ValueError, match="unknown judge setting 'vote'"):
        JudgeSettings.from_mapping({"vote": 3})


def test_defaults_are_the_papers():
    settings = JudgeSettings()
    assert (settings.temperature, settings.max_tokens, settings.max_hint_tokens, settings.votes) == (0.6, 4096, 8192, 1)


def test_judge_and_people_import_without_torch_and_ray():
    code = (
        "import sys, judge, judge.llm, judge.rules, judge.verifiable, judge.accuracy, flows.people; "
        "heavy = {'torch', 'ray', 'transformers', 'megatron'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
