"""Rollouts: tasks in, finished, rewarded and delivered rollouts out.

`tasks` reads what to do, `attempt` does one of them, `run` does all and survives its own death, `results` is the file.
"""

from rolltape.rollouts.attempt import CommandLimits
from rolltape.rollouts.results import ResultFile, Summary, TaskScore, summarize
from rolltape.rollouts.run import (
    Address,
    Event,
    Finished,
    Plan,
    Resumed,
    RolloutDesk,
    Started,
    Warned,
    run_rollouts,
)
from rolltape.rollouts.tasks import Task, read_tasks

__all__ = [
    "Address",
    "CommandLimits",
    "Event",
    "Finished",
    "Plan",
    "ResultFile",
    "Resumed",
    "RolloutDesk",
    "Started",
    "Summary",
    "Task",
    "TaskScore",
    "Warned",
    "read_tasks",
    "run_rollouts",
    "summarize",
]
