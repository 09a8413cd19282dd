"""Requests that make captures of sessions, and sessions from captures: checkpoint, restore, fork."""

import asyncio
import contextlib
import dataclasses
import time

from waypoint.capture.layers.layer import CaptureOptions
from waypoint.model.conditions import Degradation, facts_of
from waypoint.model.errors import UnknownName, UsageProblem, WaypointError
from waypoint.model.facts import CheckpointFacts, ForkFacts, ForksFacts, NotForkedFacts, ProvedFacts
from waypoint.model.records import Capture, Tier
from waypoint.model.requests import CheckpointRequest, ForkRequest, ProveRequest, RestoreRequest
from waypoint.model.session_facts import CriuLogFacts, ExchangedFacts, ReplacedFacts, SessionFacts
from waypoint.model.verbs import MAX_FORKS
from waypoint.records.reading import forks_prefix, next_name
from waypoint.service import capture_facts, layers
from waypoint.service.home import Home
from waypoint.service.returning import returned
from waypoint.service.session_hooks import before_capture, run_hooks
from waypoint.session import checkpoint as checkpointing
from waypoint.session import fork as forking
from waypoint.session import restore as restoring
from waypoint.session import session_facts
from waypoint.session.birth import rights
from waypoint.session.birth.birth import Failures
from waypoint.session.birth.proof import prove as prove_capture
from waypoint.session.checkpoint import LossConsent
from waypoint.session.losses import copy_losses

MAX_MESSAGE_BYTES = 4096
_REPEAT = "repeat the checkpoint or restore: only the last 20 logs are kept"


async def criu_log(home: Home, name: str) -> CriuLogFacts:
    """CRIU's log of a failed dump or restore. An error of CRIU names it. Raises UnknownName, also if the log is about
    a session of a user whose sessions the caller may not use.
    """
    found = await asyncio.to_thread(home.captures.criu_log, name)
    if found is None or not rights.may_use(home.sessions.resources, found[0]):
        raise no_criu_log(name)
    return CriuLogFacts(name=name, text=found[1])


def no_criu_log(name: str) -> UnknownName:
    return UnknownName("show", f"CRIU's log {name}", "no log of this name is kept", _REPEAT)


async def checkpoint(home: Home, branch: str, request: CheckpointRequest) -> CheckpointFacts:
    """Capture the session on `branch`, and let a name stand for the capture."""
    return await checkpoint_of(home, branch, request, within=False)


async def checkpoint_of(home: Home, branch: str, request: CheckpointRequest, *, within: bool) -> CheckpointFacts:
    """Capture the session on `branch` like `checkpoint`. `within`: the caller is a process of the session.

    Raises UnknownName, StateConflict (the session is not live, or the name is taken), CannotCapture (the processes
    cannot be captured with the requested tier), Failed.
    """
    begin = time.monotonic()
    if (size := len(request.message.encode())) > MAX_MESSAGE_BYTES:
        said = f"its message has {size} bytes, but at most {MAX_MESSAGE_BYTES} are kept"
        raise UsageProblem(
            "make", f"checkpoint {request.name or ''}".rstrip(), said, "attach it as a file: --attach note=FILE"
        )
    options = CaptureOptions(
        _tier_of(request),
        message=request.message,
        keep_frozen=request.park,
        name=request.name,
        force=request.force,
        within=within,
        attach=await asyncio.to_thread(layers.attachments, request.attach) if request.attach else [],
        anew=request.anew,
    )
    lost = await returned(home, branch, "checkpoint")
    async with contextlib.AsyncExitStack() as held:
        if options.name is None:  # no other request of the branch chooses the same name meanwhile
            await held.enter_async_context(home.sessions.turn(branch))
            options = options._replace(name=next_name(home.names, branch, within=within))
        kept, reused = await checkpointing.checkpoint(home.sessions, branch, options, prepare=before_capture)
    name = options.name or ""
    live = None if request.park or reused else home.sessions.find(branch)
    failed = await run_hooks(live, "post-checkpoint") if live is not None else []
    proof = capture_facts.of_proof(await prove_capture(home.sessions.resources, kept)) if request.prove else None
    if request.wait:
        try:
            await home.storing.wait(kept)
            kept = await asyncio.to_thread(home.names.capture, kept.id)  # also what it has lost since
        except WaypointError as error:
            error.said += f"; checkpoint {name} exists, but is not durable yet"
            raise
    standing = home.names.standing(kept.id)
    return CheckpointFacts(
        name=name,
        capture=kept.id,
        image=standing.image,
        tier=kept.tier,
        paused_ms=0.0 if reused else kept.paused_ms or 0.0,
        total_ms=round(1000 * (time.monotonic() - begin), 3),
        durable=standing.durable,
        degraded=facts_of([*lost, *kept.degraded, *failed]),
        proof=proof,
        reused=reused,
    )


async def prove(home: Home, request: ProveRequest) -> list[ProvedFacts]:
    """Prove the captures with these names, one after the other. A capture that cannot be proved is not an error."""
    resources, found = home.sessions.resources, dict[str, Capture]()
    for name in request.names:
        rights.check_name(resources, name, "prove")
        found[name] = await asyncio.to_thread(home.names.resolve, name)
        rights.check_origin(resources, found[name].setting.user, "prove", name)
    proofs = {name: await prove_capture(resources, origin) for name, origin in found.items()}
    return [
        ProvedFacts(name=name, capture=found[name].id, proof=capture_facts.of_proof(proof))
        for name, proof in proofs.items()
    ]


async def restore(home: Home, branch: str, request: RestoreRequest) -> SessionFacts:
    """Replace the session on `branch` by that of a capture, or start it if the branch is not live.

    After an error (UnknownName, StateConflict, CannotCapture, Failed) the old session continues unchanged.
    """
    failed: list[Degradation] = []
    layers.check_places(home, request.name, request.attach_at, branch)
    for option in ("--attach-at", "--tier"):
        if request.only is not None and (request.attach_at if option == "--attach-at" else _tier_of(request)):
            said = f"{option} cannot be combined with --only"
            raise UsageProblem("restore", request.name, said, "leave one of them out")
    if request.only == "shell":
        restored = await restoring.restore_shell(home.sessions, branch, request.name)
    elif request.only == "files":
        restored = await restoring.restore_files(home.sessions, branch, request.name)
    else:
        loss = LossConsent.of(
            f"waypoint restore {request.name} -b {branch} --lose-processes", agreed=request.lose_processes
        )
        tier = _tier_of(request)
        restored = await restoring.restore(home.sessions, branch, request.name, loss, request.attach_at, tier)
        failed = await run_hooks(restored.live, "post-restore")
    kept = restored.replaced
    replaced: ReplacedFacts | None = {"capture": kept.id, "tier": kept.tier} if kept else None
    return dataclasses.replace(
        session_facts.of_start(restored.live),
        degraded=facts_of([*restored.degraded, *failed]),
        replaced=replaced,
        exchanged=_exchanged(restored.exchanged),
    )


def _exchanged(done: restoring.Exchanged | None) -> ExchangedFacts | None:
    if done is None:
        return None
    return {"changed": done.files.changed, "written_bytes": done.files.written_bytes, "paused_ms": done.paused_ms}


async def restore_there(home: Home, request: RestoreRequest) -> SessionFacts:
    """Restore the capture on the branch on which it was taken; if `request.name` is a branch, on this branch."""
    return await restore(home, restoring.branch_of(home.names, request.name), request)


async def fork(home: Home, request: ForkRequest) -> ForksFacts:
    """Start sessions on new branches from a capture: all of them or none, unless the request is `partial`."""
    begin = time.monotonic()
    layers.check_places(home, request.name, request.attach_at)
    branches, failures = _branches_of(home, request), Failures()
    wish = forking.Wish(_tier_of(request), request.attach_at, request, failures if request.partial else None)
    lives, origin = await forking.fork(home.sessions, request.name, branches, before_capture, wish)
    failed = await asyncio.gather(*(run_hooks(live, "post-restore") for live in lives))
    taken_ms = round(1000 * (time.monotonic() - begin), 3)
    forks = [
        ForkFacts(
            branch=live.branch,
            pid=live.record.init_pid,
            ms=taken_ms,
            session=dataclasses.replace(
                session_facts.of_start(live), degraded=facts_of([*copy_losses(live, origin), *said])
            ),
        )
        for live, said in zip(lives, failed, strict=True)
    ]
    numbers = {branch: number for number, branch in enumerate(branches, 1)}
    not_forked: list[NotForkedFacts] = [
        {"number": numbers[branch], "branch": branch, "error": error.to_json()} for branch, error in failures.items()
    ]
    return ForksFacts(forks=forks, failed=not_forked)


def _tier_of(request: CheckpointRequest | RestoreRequest | ForkRequest) -> Tier | None:
    return None if request.tier == "auto" else request.tier


def _branches_of(home: Home, request: ForkRequest) -> list[str]:
    """Return the requested names of the new branches, without checking them. Raises UsageProblem."""
    name, branches, count, prefix = request.name, request.branches, request.count, request.prefix
    if bool(branches) == (count is not None):
        said = (
            "names of branches cannot be combined with -n" if branches else "neither names of branches nor -n are given"
        )
        raise UsageProblem("fork", repr(name), said, "name the branches, or give -n N")
    if count is None:
        if prefix is not None:
            raise UsageProblem(
                "use",
                "--prefix",
                "it works with -n only",
                "leave out --prefix, and give the whole names of the branches",
            )
        return list(branches)
    if count > MAX_FORKS:
        raise forking.too_many(f"{count} branches")
    prefix = forks_prefix(home.names, name) if prefix is None else prefix
    return [f"{prefix}-{number}" for number in range(1, count + 1)]
