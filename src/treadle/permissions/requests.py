"""What a running call may ask for besides what it has: a host, or a folder outside the workspace. Pure.

A request is decided like a call of a tool with its name, so patterns such as `network(example.org)` and
`read_folder(/srv/data)` match it. What cannot be asked for at all is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from msgspec.structs import replace

from treadle.events import Grant
from treadle.messages import Json
from treadle.permissions.patterns import build_exact_pattern, covers_call
from treadle.permissions.policy import Assessment, RememberedAnswer, Verdict, decide_call

NETWORK, READ_FOLDER, WRITE_FOLDER = "network", "read_folder", "write_folder"
"""The names under which rules match a request."""

USUAL_PORTS = (80, 443)
"""A rule without a port allows these. It forbids all."""


def suggest_request_rule(tool: str, arguments: Mapping[str, Json]) -> str:
    """Suggest the rule that a person may remember: exactly this host or folder."""
    return build_exact_pattern(tool, _name_port(tool, arguments))


def decide_request(
    grants: Sequence[Grant],
    remembered: Sequence[RememberedAnswer],
    tool: str,
    arguments: Mapping[str, Json],
    assessment: Assessment,
) -> Verdict:
    """Decide a request by the same rules as a call. The list of tools that a model may call says nothing about it.

    A rule for exactly this host or folder also answers how data could flow to it. A rule with a wildcard does not.
    """
    grants = [replace(grant, tools=("*",)) for grant in grants]
    plain = decide_call(grants, remembered, tool, arguments, assessment)
    if plain.action == "deny":
        return plain
    named = _name_port(tool, arguments)
    rules = [pattern for grant in grants for pattern in (*grant.approve, *grant.always)]
    rules += [answer.pattern for answer in remembered if answer.decision == "allow"]
    exact = build_exact_pattern(tool, named)
    if any(rule == exact and covers_call(rule, tool, named) for rule in rules):
        assessment = replace(assessment, flow_risk="")
    return decide_call(grants, remembered, tool, named, assessment)


def _name_port(tool: str, arguments: Mapping[str, Json]) -> Mapping[str, Json]:
    """Write an unusual port into the host, as rules name it."""
    port = cast("int", arguments.get("port", USUAL_PORTS[0]))
    if tool != NETWORK or port in USUAL_PORTS:
        return arguments
    return {**arguments, "host": f"{arguments.get('host')}:{port}"}
