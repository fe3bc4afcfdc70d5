"""Detects in plain words that a model is stuck, is uncertain, or hands back to the user. Pure.

The grammar is small and anchored: whole sentences in the first person near the end of a reply, outside code and quotes.
A missed signal costs little; an answer that is taken for a signal would be lost.
"""

from __future__ import annotations

import re

from treadle.events import ReplySignal

_LAST_SENTENCES = 3
_LONGEST_SENTENCE = 400

# Code, quotations and quoted lines are not the model's own statements.
_CODE = re.compile(r"(?s)(```|~~~).*?(?:\1|\Z)|`[^`\n]*`")
_QUOTED = re.compile("\"[^\"\n]*\"|“[^“”\n]*”|«[^«»\n]*»|(?<![\\w])'[^'\n]*'(?![\\w])")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[)\]]*\s+|(?<!\s)\s+[—–]\s+")
_LEAD = (
    r"(?:(?:so|ok|okay|well|sorry|i'm sorry|i am sorry|i apologi[sz]e|unfortunately|honestly|frankly|sadly|"
    r"at this point|right now|now|for now|as it stands|as a result|therefore|because of this|without (?:it|that|them)|"
    r"and|but|then)[,:]?\s+)*"
)
_CANNOT = r"(?:cannot|can't|can not|(?:'m| am) unable to|(?:'m| am) not able to)"
_GO_ON = r"(?:proceed|continue|go on|go (?:any )?further|move (?:forward|on)|make (?:any )?(?:further |more )?progress)"
_REASON = (
    r"(?:[,;:]? (?:without|until|unless|because|since|as|due to|from here|at this point|any further|further|here)\b.*)?"
)
_ADVERB = r"(?:completely |currently |really |now |still |truly |totally |simply |just |also )?"
_INPUT = (
    r"(?:input|decision|guidance|instructions?|confirmation|approval|answer|reply|response|feedback|go-ahead|help|"
    r"clarification|permission|direction)"
)
_TASK = r"(?:(?:with|working on) (?:this|the|your|that)(?: \w+)?)?"

_UNSURE = r"(?:not (?:sure|certain)|unsure|uncertain)(?: of| about)?"
_UNKNOWN = r"(?:(?:really |honestly |simply )?(?:don't|do not) know|have no idea)"
_WHERE = r"where to (?:start|begin|look|go)"
_GIVE = r"(?:provide|give me|send me)"
_ENABLE = r"(?:to|before i can|so (?:that )?i can|on how to)"
_ASK = r"(?:let me know|tell me|advise(?: me)?(?: on)?|instruct me(?: on)?)"
_WISH = r"you(?:'d| would)? (?:like|want|prefer)(?: me| us)? to"

_GRAMMAR: dict[ReplySignal, tuple[str, ...]] = {
    "stuck": (
        rf"i(?:'m| am) {_ADVERB}stuck(?: (?:here|now|again|in a loop|at this point))?"
        r"(?:[,;]? (?:and|because|since|as|on|trying to|without|so (?:please|i (?:need|cannot|can't)))\b.*)?",
        rf"i(?: {_ADVERB}|(?='| am )){_CANNOT} {_GO_ON}(?: {_TASK})?{_REASON}",
        rf"i(?:'m| am) {_ADVERB}(?:blocked|at a dead end)(?: (?:by|on|because|and|here|now)\b.*)?",
        r"i(?: have|'ve)? (?:run|ran) out of (?:ideas|options|things to try)(?: .*)?",
    ),
    "uncertain": (
        rf"i {_UNKNOWN} how to (?!thank|express|put|tell you)\w+.*",
        rf"i {_UNKNOWN} (?:what to do|what else to try|{_WHERE})\b.*",
        rf"i(?:'m| am) (?:really |still |quite )?{_UNSURE} (?:how to|what to do|how i should|{_WHERE})\b.*",
    ),
    "yielded": (
        rf"(?:please )?{_ASK} (?:how|where) (?:to|i should|we should|{_WISH}) {_GO_ON}\b.*",
        rf"(?:how|where) (?:should i|shall i|do i|(?:would|do) you (?:like|want)(?: me)? to) {_GO_ON}(?: [\w ]+)?\?",
        r"what should i do(?: next| now)?\?",
        r"(?:it's |it is |this is |that's |now )?(?:over|back) to you(?: now)?",
        rf"(?:i(?:'m| am) (?:now |still )?)?(?:awaiting|waiting for) your {_INPUT}(?: .*)?",
        rf"i(?:'ll| will)? (?:{_ADVERB}need|require|await|wait for) your {_INPUT}(?: .*)?",
        rf"i {_ADVERB}need (?:you|more|further|some|additional)\b.*\b{_ENABLE} {_GO_ON}\b.*",
        r"i(?:'m| am|'ll be) handing (?:this|it|control|things|the task)(?: back)?(?: over)? to you(?: now)?",
        rf"please {_GIVE} (?:further|more|additional) (?:instructions|guidance|direction)",
        rf"please {_GIVE} .*\b{_ENABLE} {_GO_ON}\b.*",
        r"please advise",
    ),
}
_PATTERNS: dict[ReplySignal, re.Pattern[str]] = {
    kind: re.compile(rf"{_LEAD}(?P<said>{'|'.join(patterns)})") for kind, patterns in _GRAMMAR.items()
}
_TAKES_BACK = re.compile(r"\b(?:but|however|until i|before i (?!can))\b")
_GOES_ON = re.compile(
    rf"{_LEAD}(?:here(?:'s| is| are)|the (?:answer|result|solution) is|however|instead|i (?:found|solved|fixed))\b"
)
_THANKS = re.compile(r"(?:thanks|thank you|cheers)\b.{0,40}")
_LIST_ITEM = re.compile(r"\s*(?:[-*+•]|\d+[.)]|>|\|)(?:\s|$)")


def find_implicit_signals(text: str) -> dict[ReplySignal, str]:
    """Find the signals in the last sentences of a reply, each with the sentence that gives it.

    Only the last sentence can hand back. A sentence that a later one takes back counts for nothing.
    """
    found: dict[ReplySignal, str] = {}
    sentences = _split_sentences(text)
    while sentences and _THANKS.fullmatch(sentences[-1]):
        sentences.pop()
    sentences = sentences[-_LAST_SENTENCES:]
    for place, sentence in enumerate(sentences, 1):
        if len(sentence) > _LONGEST_SENTENCE or any(map(_GOES_ON.match, sentences[place:])):
            continue
        plain = sentence.rstrip(".!… ")
        for kind, pattern in _PATTERNS.items():
            may_be = kind != "yielded" or place == len(sentences)
            if may_be and (match := pattern.fullmatch(plain)) and not _TAKES_BACK.search(match["said"]):
                found.setdefault(kind, sentence)
                break
    return found


def _split_sentences(text: str) -> list[str]:
    """The sentences of the model's own prose, in lower case. Items of lists and lines after a colon are examples."""
    text = text.replace("’", "'").replace("‘", "'")
    text = _QUOTED.sub("“…”", _CODE.sub("“…”", text))
    sentences: list[str] = []
    is_example = False
    for written in text.splitlines():
        line = re.sub(r"^#+\s+|[*_]{1,3}", "", written).strip().lower()
        if line and not is_example and not _LIST_ITEM.match(written):
            sentences += filter(None, _SENTENCE_END.split(line))
        is_example = line.endswith(":") if line else is_example
    return sentences
