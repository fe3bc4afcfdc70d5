"""What a model says in plain words: that it is stuck, that it does not know how, or that it hands back."""

import time

import pytest

from tests.kit.sessions import build_agent, note, run_message
from treadle import Limits
from treadle.engine.implicit_signals import find_implicit_signals
from treadle.events import EndReason, SignalDetected
from treadle.testing import call

SIGNALS: list[tuple[str, str]] = [
    ("I'm stuck and cannot proceed.", "stuck"),
    ("I am stuck", "stuck"),
    ("I am stuck.", "stuck"),
    ("I’m stuck!", "stuck"),
    ("I read the three files.\n\nI'm completely stuck.", "stuck"),
    ("I'm stuck here.", "stuck"),
    ("I am stuck in a loop.", "stuck"),
    ("I'm stuck on the second step. The tool always fails.", "stuck"),
    ("I'm stuck because the file does not exist. I looked in every folder.", "stuck"),
    ("Unfortunately, I'm stuck: “config.toml” is missing.\nI'm stuck.", "stuck"),
    ("**I'm stuck.**", "stuck"),
    ("I'm still stuck, and there is nothing left to try.", "stuck"),
    ("I cannot proceed.", "stuck"),
    ("I can't continue.", "stuck"),
    ("I cannot continue without the password.", "stuck"),
    ("I cannot proceed without access to the database.", "stuck"),
    ("I can't proceed until the server is running.", "stuck"),
    ("I am unable to proceed with this task because the folder is empty.", "stuck"),
    ("I'm unable to continue.", "stuck"),
    ("I'm not able to make any progress.", "stuck"),
    ("Sorry, but I can't go any further.", "stuck"),
    ("At this point, I cannot make further progress.", "stuck"),
    ("I am blocked by a missing permission.", "stuck"),
    ("I'm at a dead end.", "stuck"),
    ("I've run out of ideas.", "stuck"),
    ("I don't know how to proceed.", "uncertain"),
    ("I don't know how to solve this equation.", "uncertain"),
    ("I do not know how to fix the failing test.", "uncertain"),
    ("I really don't know how to do that.", "uncertain"),
    ("I have no idea how to parse this format.", "uncertain"),
    ("I don't know what to do.", "uncertain"),
    ("I don't know where to start.", "uncertain"),
    ("I'm not sure how to proceed.", "uncertain"),
    ("I am not certain what to do with this file.", "uncertain"),
    ("I'm unsure how to continue.", "uncertain"),
    ("I am uncertain about how to read the second table.", "uncertain"),
    ("Please let me know how to proceed.", "yielded"),
    ("There are two ways to do it. Let me know how you'd like to proceed.", "yielded"),
    ("Let me know how you would like me to continue. Thank you!", "yielded"),
    ("Please tell me how I should proceed.", "yielded"),
    ("Please advise on how to proceed.", "yielded"),
    ("Please advise.", "yielded"),
    ("How would you like to proceed?", "yielded"),
    ("How should I proceed?", "yielded"),
    ("What should I do next?", "yielded"),
    ("Over to you.", "yielded"),
    ("The draft is in draft.md. Over to you!", "yielded"),
    ("Back to you.", "yielded"),
    ("I need your input to continue.", "yielded"),
    ("I need your decision before I can go on.", "yielded"),
    ("I'm waiting for your confirmation.", "yielded"),
    ("I'll wait for your approval before deleting anything.", "yielded"),
    ("Awaiting your instructions.", "yielded"),
    ("I need more information to proceed.", "yielded"),
    ("I need you to choose one of them before I can continue.", "yielded"),
    ("I'm handing this back to you.", "yielded"),
    ("Please provide further instructions.", "yielded"),
    ("Please give me the path of the file so that I can continue.", "yielded"),
]
ANSWERS = [
    "42",
    "If you get stuck, read the manual.",
    "If you are stuck, let me know how it went.",
    "I was stuck at first but solved it.",
    "I was stuck for a while. The answer is 42.",
    "I'm stuck on this one, but I found another way: use grep.",
    "I'm stuck. Here is what I have found: the sum is 12.",
    "I got stuck on the first try, so I read the file again. It has 12 lines.",
    "The process is stuck in state D.",
    "You are stuck because the lock is held. Remove the file.",
    'The label says "I am stuck".',
    "He wrote: 'I am stuck and cannot proceed.'",
    "The translation is:\nI am stuck.",
    "In English: I am stuck.",
    "```\nI am stuck\n```",
    "The command prints `I am stuck`.",
    "> I am stuck and cannot proceed.",
    "Phrases that mean this:\n- I am stuck\n- I don't know how to proceed\n- Over to you",
    "1. I am stuck\n2. I cannot continue",
    "She said, “I am stuck.”",
    "When I'm stuck, I look at the logs.",
    "I'm never stuck for long: all tests pass now.",
    "I am stuck with the old API, so the code uses version 1.",
    "You cannot proceed without a key. Set OPENAI_API_KEY.",
    "The installer cannot continue without administrator rights.",
    "I cannot proceed to Paris in the story, says the hero.",
    "I can't help with that.",
    "I cannot share passwords.",
    "I can continue without the file. It is done.",
    "I could not proceed without the file, so I created it.",
    "I don't know.",
    "I don't know the capital of that country.",
    "I don't know how to thank you.",
    "Users don't know how to reset the password. Add a link.",
    "Do you know how to proceed? Run make test.",
    "I didn't know how to fix it at first. Now it works.",
    "I'm not sure, but I think that it is Paris.",
    "I'm sure how to proceed: run the migration.",
    "Let me know if you need anything else.",
    "Let me know if you'd like me to continue with the tests.",
    "Let me know what you think.",
    "Please let me know if you have questions.",
    "I hope this helps! Let me know how it goes.",
    "Is there anything else you would like to know?",
    "To proceed, run `make install`. To continue later, press q.",
    "The function hands control over to you in the callback.",
    "The ball goes over to your side.",
    "Dear Ms Smith,\n\nI await your reply.\n\nSincerely,\nAnna",
    "Please provide your feedback.",
    "Your input is needed to continue the survey, says the page.",
    "I need your shoes to continue.",
    "The next step: decide how to proceed. I would take the first option.",
    "How to proceed is described in README.md.",
    "All done. The file has 12 lines.",
    "I proceeded without the missing file. The sum is 12.",
    "The wait is over. To you it may seem long.",
]


@pytest.mark.parametrize(("text", "kind"), SIGNALS)
def test_a_signal_in_plain_words_is_detected(text: str, kind: str) -> None:
    assert kind in find_implicit_signals(text)


@pytest.mark.parametrize("text", ANSWERS)
def test_an_ordinary_answer_is_no_signal(text: str) -> None:
    assert find_implicit_signals(text) == {}


def test_the_tables_are_long_enough_to_mean_something() -> None:
    assert len(SIGNALS) >= 40 and len(ANSWERS) >= 40
    assert {kind for _, kind in SIGNALS} == {"stuck", "uncertain", "yielded"}


@pytest.mark.parametrize("piece", ["'", '"', "`", "i need you to ", "so and but ", "```", "\n", "a. ", "- "])
def test_a_long_text_is_searched_in_linear_time(piece: str) -> None:
    began = time.process_time()
    find_implicit_signals(piece * (200_000 // len(piece)))
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("text", "reason", "kinds"),
    [
        ("I'm stuck and cannot proceed.", "stuck", ["stuck"]),
        ("Please let me know how to proceed.", "yielded", ["yielded"]),
        ("I don't know how to proceed.", "answered", ["uncertain"]),
        ("If you get stuck, ask me.", "answered", []),
        ("<answer>I'm stuck</answer>", "answered", ["answered"]),
    ],
)
async def test_im_stuck_and_cannot_proceed_is_no_answer(text: str, reason: EndReason, kinds: list[str]) -> None:
    agent, _ = build_agent(text)
    async with agent.session() as session:
        outcome = await run_message(session, "go")
        assert outcome is not None and outcome.reason == reason
        found = [fact for fact in await session.facts() if isinstance(fact, SignalDetected)]
        assert [fact.kind for fact in found] == kinds


async def test_a_reply_with_calls_is_no_signal_and_the_detection_can_be_switched_off() -> None:
    agent, _ = build_agent(["I'm stuck.", call("note", text="a")], "done", tools=[note])
    async with agent.session() as session:
        outcome = await run_message(session, "go")
        assert outcome is not None and outcome.reason == "answered"
    agent, _ = build_agent("I'm stuck.", limits=Limits(implicit_signals=False))
    async with agent.session() as session:
        outcome = await run_message(session, "go")
        assert outcome is not None and (outcome.reason, outcome.answer) == ("answered", "I'm stuck.")
