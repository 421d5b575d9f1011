"""Simulated people: a scripted student with a taste, who talks to the served model and says what she thinks of it.

What it does: `Student` (conversations), `evaluate` (score on unseen problems), `score` and `reply` (her taste).
What it leaves out: people. She is a stand-in for demonstrations and tests: scripted, and as narrow as her rubric.
"""

from flows.people.problems import Problem, load_problems
from flows.people.replies import reply
from flows.people.rubric import CRITERIA, RubricScore, score
from flows.people.student import Evaluation, Student, StudentSettings, evaluate

__all__ = [
    "CRITERIA",
    "Evaluation",
    "Problem",
    "RubricScore",
    "Student",
    "StudentSettings",
    "evaluate",
    "load_problems",
    "reply",
    "score",
]
