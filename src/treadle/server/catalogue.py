"""Tools, skills, agents, models and memory."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field, computed_field

from treadle.errors import NotFound, TreadleError
from treadle.knowledge.base import Proposals
from treadle.memory.base import MAX_MEMORY_LENGTH, Memory, MemoryKind, MemoryQuery
from treadle.server.model_loader import LoadState, ModelStream
from treadle.server.problems import build_field_error
from treadle.server.service import Approver, CurrentService, Sender, Service, StrictBody, Viewer
from treadle.server.streams import SSE_RESPONSES

router = APIRouter(prefix="/v1", tags=["catalogue"])
_PROPOSAL_FIELDS = ("name", "description", "diff", "path", "why", "created_at")


class ToolView(BaseModel):
    name: str
    description: str
    class_: str = Field(alias="class", serialization_alias="class")
    schema_: dict[str, Any] = Field(alias="schema", serialization_alias="schema")
    agents: list[str]


class SkillView(BaseModel):
    """A skill. `triggers` are the words and patterns that activate it, or `always`."""

    id: str
    description: str
    triggers: list[str]
    origin: str
    enabled: bool


class SkillSwitch(StrictBody):
    enabled: bool


class ProposalView(BaseModel):
    """A skill that was drafted from finished work. It is not active until a person accepts it."""

    id: str
    name: str
    description: str
    content: str
    diff: str
    path: str
    why: str
    created_at: float


class ProposalAnswer(StrictBody):
    accept: bool


class ProposalDecision(BaseModel):
    """What was decided. `path` is the file of an accepted skill."""

    id: str
    status: Literal["accepted", "declined"]
    path: str = ""


class AgentView(BaseModel):
    name: str
    description: str
    model: str
    tools: list[str]
    max_iterations: int


class LoadProgress(BaseModel):
    """How far a model is loaded. `fraction` is from 0 to 1, or null when it is unknown."""

    fraction: float | None
    message: str


class ModelView(BaseModel):
    """A model or an agent, with the fields that OpenAI's and Anthropic's clients expect.

    Requests may use a model that is `loaded`. `progress` is there while it loads; `error` says why it cannot be used.
    `reachable` and `why` are those of the last check: `GET /v1/models?check=true` checks again.
    """

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "treadle"
    loaded: bool = True
    window: int | None = None
    state: Literal["loading", "loaded", "failed", "unloaded"] = "loaded"
    progress: LoadProgress | None = None
    error: str = ""
    reachable: bool = True
    why: str = ""
    type: str = "model"
    created_at: str = "1970-01-01T00:00:00Z"

    @computed_field
    @property
    def display_name(self) -> str:
        return self.id


class ModelList(BaseModel):
    """All models. Anthropic's clients read `first_id`, `last_id` and `has_more`."""

    object: str = "list"
    data: list[ModelView]
    has_more: bool = False

    @computed_field
    @property
    def first_id(self) -> str | None:
        return self.data[0].id if self.data else None

    @computed_field
    @property
    def last_id(self) -> str | None:
        return self.data[-1].id if self.data else None


class ModelName(StrictBody):
    model: str = Field(max_length=500)


class MemoryView(BaseModel):
    """A memory. `scope` is its workspace; an empty scope means every workspace.

    `session_id` is the session that it comes from, and empty when a person added it. It is `untrusted` if that session
    had read text that others wrote.
    """

    id: str
    content: str
    kind: MemoryKind
    scope: str
    session_id: str
    created_at: float
    untrusted: bool = False

    @classmethod
    def from_memory(cls, memory: Memory) -> MemoryView:
        fields = {name: getattr(memory, name) for name in ("id", "kind", "scope", "session_id", "untrusted")}
        return cls(content=memory.text, created_at=memory.at, **fields)


class NewMemory(StrictBody):
    content: str = Field(min_length=1, max_length=MAX_MEMORY_LENGTH)
    kind: MemoryKind = "fact"
    scope: str = Field("", max_length=4000)


class MemoryText(StrictBody):
    content: str = Field(min_length=1, max_length=MAX_MEMORY_LENGTH)


class MemoryName(StrictBody):
    id: str = Field(max_length=200)


@router.get("/tools", response_model_by_alias=True)
async def list_tools(service: CurrentService, token: Viewer) -> list[ToolView]:
    """List the tools of all agents."""
    found: dict[str, ToolView] = {}
    for agent in service.runtime.agents.values():
        for name, tool in agent.toolbox.items():
            if name in found:
                found[name].agents.append(agent.name)
                continue
            shown: dict[str, Any] = {"class": tool.assess_safety({}), "schema": tool.spec.parameters}
            found[name] = ToolView(name=name, description=tool.spec.description, agents=[agent.name], **shown)
    return list(found.values())


@router.get("/skills")
async def list_skills(service: CurrentService, token: Viewer) -> list[SkillView]:
    """List the agents' skills in the first of the operator's folders."""
    workspace = service.resolve_workspace("")
    found: dict[str, SkillView] = {}
    for agent in service.runtime.agents.values():
        if agent.knowledge is None:
            continue
        for name, skill in agent.knowledge.load_skills(workspace).items():
            triggers = [*skill.keywords, *skill.patterns, *(["always"] if skill.always else [])]
            found[name] = SkillView(
                id=name, description=skill.description, triggers=triggers, origin=skill.origin, enabled=skill.enabled
            )
    return list(found.values())


@router.patch("/skills/{skill_id}")
async def switch_skill(service: CurrentService, token: Sender, skill_id: str, body: SkillSwitch) -> SkillView:
    """Enable or disable a skill in every workspace of this server's user."""
    if skill_id not in {skill.id for skill in await list_skills(service, token)}:
        raise NotFound(f"there is no skill {skill_id[:200]!r} here; GET /v1/skills lists them")
    for agent in service.runtime.agents.values():
        if agent.knowledge is not None:
            agent.knowledge.enable_skill(skill_id, on=body.enabled)
    return next(skill for skill in await list_skills(service, token) if skill.id == skill_id)


@router.get("/skills/proposals")
async def list_skill_proposals(service: CurrentService, token: Viewer) -> list[ProposalView]:
    """List the skills that were drafted from finished work and wait for a decision."""
    proposals = _find_proposals(service)
    return [
        ProposalView(id=one.name, content=one.text, **{name: getattr(one, name) for name in _PROPOSAL_FIELDS})
        for one in (proposals.list() if proposals is not None else ())
    ]


@router.post("/skills/proposals/{proposal_id}")
async def decide_skill_proposal(
    service: CurrentService, token: Approver, proposal_id: str, body: ProposalAnswer
) -> ProposalDecision:
    """Accept or decline a drafted skill. An accepted skill is active from the next run on."""
    proposals = _find_proposals(service)
    if proposals is None:
        raise NotFound(f"no skill named {proposal_id[:200]!r} is proposed")
    if body.accept:
        return ProposalDecision(id=proposal_id, status="accepted", path=str(proposals.accept(proposal_id)))
    proposals.decline(proposal_id)
    return ProposalDecision(id=proposal_id, status="declined")


def _find_proposals(service: Service) -> Proposals | None:
    """The proposals of this server's user. All agents share them."""
    found = (agent.knowledge.proposals for agent in service.runtime.agents.values() if agent.knowledge is not None)
    return next((one for one in found if one is not None), None)


@router.get("/agents")
async def list_agents(service: CurrentService, token: Viewer) -> list[AgentView]:
    """List the agents. The first is the one of sessions that name none."""
    workspace = service.resolve_workspace("")
    about: dict[str, str] = {}
    for agent in service.runtime.agents.values():
        if agent.knowledge is not None and agent.name not in about:
            about.update(agent.knowledge.describe_agents(workspace))
    return [
        AgentView(
            name=agent.name,
            description=about.get(agent.name, ""),
            model=agent.resolve_model().name,
            tools=sorted(agent.toolbox),
            max_iterations=agent.limits.turns,
        )
        for agent in sorted(service.runtime.agents.values(), key=lambda agent: agent is not service.default_agent)
    ]


# ── models ───────────────────────────────────────────────────────────────────────────────────────────


@router.get("/models")
async def list_models(service: CurrentService, token: Viewer, check: bool = False) -> ModelList:
    """List the models, and the agents as `agent:NAME`. `check` connects to their providers, but sends no request."""
    if check:
        await service.readiness.check()
    models = [_describe_model(service, name) for name in service.list_model_names()]
    return ModelList(data=[*models, *(ModelView(id=f"agent:{name}") for name in service.runtime.agents)])


@router.get("/models/stream", response_class=Response, responses=SSE_RESPONSES)
async def stream_models(service: CurrentService, token: Viewer) -> Any:
    """Stream the state of every model, and then each change, as `model_updated`."""

    def describe() -> dict[str, bytes]:
        return {name: _describe_model(service, name).model_dump_json().encode() for name in service.list_model_names()}

    return ModelStream(service.streams, service.loader, describe)


@router.get("/models/{model_id:path}")
async def get_model(service: CurrentService, token: Viewer, model_id: str) -> ModelView:
    """Show one model, or an agent as `agent:NAME`."""
    for model in (await list_models(service, token)).data:
        if model.id == model_id:
            return model
    raise NotFound(f"there is no model {model_id[:200]!r} here; GET /v1/models lists them")


def _describe_model(service: Service, name: str) -> ModelView:
    try:
        model = service.runtime.model(name)
    except TreadleError as error:
        return ModelView(id=name, loaded=False, state="failed", error=str(error), reachable=False, why=str(error))
    state = service.loader.states.get(name) or LoadState("loaded")
    why = state.error or service.readiness.find_problem(name)
    return ModelView(
        id=name,
        loaded=name not in service.loader.blocked,
        window=model.window,
        state=state.state,
        progress=LoadProgress(fraction=state.fraction, message=state.message) if state.state == "loading" else None,
        error=state.error,
        reachable=not why,
        why=why,
    )


@router.post("/models/load", status_code=202)
async def load_model(service: CurrentService, token: Sender, body: ModelName) -> ModelView:
    """Load a model in the background: one of this server, any other of the catalog, or a GGUF file.

    A GGUF file is named `local:PATH` and must be in the operator's model folders. `GET /v1/models` has the progress.
    """
    service.check_open()
    name = service.resolve_alias(body.model.strip())
    is_known = name in service.list_model_names()
    if not is_known:
        name = service.loader.resolve_name(name)
    service.loader.start_loading(name, is_known=is_known)
    return _describe_model(service, name)


@router.post("/models/unload")
async def unload_model(service: CurrentService, token: Sender, body: ModelName) -> ModelView:
    """Free what a model holds. No run starts on it until it is loaded again; a current run loads it itself."""
    name = service.resolve_alias(body.model.strip())
    if name not in service.list_model_names():
        name = service.loader.resolve_name(name)
    service.check_model_name(name)
    await service.loader.unload(name)
    return _describe_model(service, name)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────


@router.get("/memory")
async def list_memories(
    service: CurrentService,
    token: Viewer,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> list[MemoryView]:
    """List the memories, the oldest first. `offset` skips that many."""
    memories = await service.runtime.log.memories.list(MemoryQuery(limit=limit, offset=offset))
    return [MemoryView.from_memory(memory) for memory in memories]


@router.get("/memory/search")
async def search_memories(
    service: CurrentService,
    token: Viewer,
    q: Annotated[str, Query(min_length=1, max_length=2000)],
    k: Annotated[int, Query(ge=1, le=100)] = 5,
) -> list[MemoryView]:
    """Search the memories, best match first."""
    return [MemoryView.from_memory(memory) for memory in await service.runtime.log.memories.search(q, limit=k)]


@router.post("/memory", status_code=201)
async def add_memory(service: CurrentService, token: Sender, body: NewMemory) -> MemoryView:
    """Add a memory. Text that looks like a secret is refused."""
    memory = Memory(text=body.content, kind=body.kind, scope=body.scope)
    return MemoryView.from_memory(await service.runtime.log.memories.add(memory))


@router.patch("/memory/{memory_id}")
async def edit_memory(service: CurrentService, token: Sender, memory_id: str, body: MemoryText) -> MemoryView:
    """Change the text of a memory. Text that looks like a secret is refused."""
    return MemoryView.from_memory(await service.runtime.log.memories.edit(memory_id, body.content))


@router.delete("/memory", status_code=204)
async def delete_memory(
    service: CurrentService,
    token: Sender,
    body: MemoryName | None = None,
    id: Annotated[str, Query(max_length=200)] = "",
) -> None:
    """Delete a memory by the id in the query or in the body."""
    name = body.id if body is not None else id
    if not name:
        raise build_field_error("id", "name the memory to delete")
    await service.runtime.log.memories.delete(name)


@router.delete("/memory/{memory_id}", status_code=204)
async def delete_memory_by_id(service: CurrentService, token: Sender, memory_id: str) -> None:
    """Delete a memory."""
    await service.runtime.log.memories.delete(memory_id)
