"""The ports of a live session: those on which its programs listen, and those that are published on the machine."""

import asyncio
import contextlib

import msgspec

from waypoint.egress import published
from waypoint.linux.net import network, sockets
from waypoint.linux.tasks import procfs
from waypoint.model.errors import UnknownName
from waypoint.model.records import Published
from waypoint.model.session_facts import PortFacts
from waypoint.model.verbs import parse_number
from waypoint.processes import ports
from waypoint.session.birth import rights
from waypoint.session.birth.setting import check_own_network
from waypoint.session.live import record as records
from waypoint.session.live.session import LiveSession
from waypoint.session.registry import Registry

_MOST_NAMED = 20_000  # descriptors that are looked at for the names of programs


def facts_of(one: Published, program: str = "", said: str = "") -> PortFacts:
    facts = PortFacts(port=one.session, program=program, host=one.address or "127.0.0.1", host_port=one.host)
    return {**facts, "said": said} if said else facts


def published_facts(live: LiveSession) -> list[PortFacts]:
    said = live.why_no_ports()
    return [facts_of(one, said=said) for one in live.record.row.setting.publish]


def of_live(live: LiveSession) -> list[PortFacts]:
    """All ports of a live session, sorted. Blocks."""
    said = live.why_no_ports()
    programs = _listening(live, is_shared=live.record.row.setting.net == "host")
    found = [facts_of(one, programs.pop(one.session, ""), said) for one in live.record.row.setting.publish]
    found += [PortFacts(port=port, program=name, host=None, host_port=None) for port, name in programs.items()]
    return sorted(found, key=lambda one: one["port"])


def _listening(live: LiveSession, *, is_shared: bool) -> dict[int, str]:
    """The TCP ports on which the session's programs listen, with the names of the programs. `is_shared`: others use its
    network, too.
    """
    by_inode = sockets.listening(live.record.init_pid)
    found = {} if is_shared else dict.fromkeys(by_inode.values(), "")
    for place, (inode, pid, _number) in enumerate(ports.open_sockets(live.processes())):
        if inode in by_inode:
            with contextlib.suppress(ProcessLookupError):
                found[by_inode[inode]] = procfs.stat(pid).name
        if place > _MOST_NAMED:
            break
    return found


async def publish(sessions: Registry, branch: str, text: str) -> PortFacts:
    """Publish a port of the session on `branch` (PublishRequest.port), unless it is published already."""
    number, asked = parse_number(text), published.parse(text, takes_number=True)
    resources = sessions.resources
    async with sessions.turn(branch):
        rights.check_name(resources, branch, "publish a port of")
        live = await sessions.settled_live(branch)
        setting = live.record.row.setting
        check_own_network(setting.net, text)
        for one in setting.publish:
            if one.session == asked.session and (number is not None or asked in (one, _free(one))):
                return facts_of(one, said=live.why_no_ports())
        wanted, privileged = asked, not rights.is_restricted(resources)
        if number is not None and number >= network.first_unprivileged_port():
            wanted = Published(session=number, host=number)
        add = resources.published.add
        made = add(sessions.published_by(live), wanted, exactly=number is None, privileged=privileged)
        try:
            await asyncio.to_thread(_record, sessions, live, [*setting.publish, made])
        except BaseException:
            resources.published.remove(live.record.row.session, made)
            raise
        return facts_of(made)


async def withdraw(sessions: Registry, branch: str, text: str) -> None:
    """End the publication of the session's port in `text`, or of one of its numbers on the machine."""
    number, asked = parse_number(text), published.parse(text, takes_number=True)
    async with sessions.turn(branch):
        rights.check_name(sessions.resources, branch, "close a port of")
        live = await sessions.settled_live(branch)
        found = live.record.row.setting.publish
        gone = [one for one in found if one.session == number or asked in (one, _free(one))]
        if not gone:
            next_step = f"see which are: waypoint port {branch}"
            raise UnknownName("close", f"port {text} of {branch}", "it is not published", next_step)
        await asyncio.to_thread(_record, sessions, live, [one for one in found if one not in gone])
        for one in gone:
            sessions.resources.published.remove(live.record.row.session, one)


def _free(one: Published) -> Published:
    return msgspec.structs.replace(one, host=0)


def _record(sessions: Registry, live: LiveSession, publish: list[Published]) -> None:
    """Record the published ports of a live session, which its captures have, too. Blocks."""
    row = live.record.row
    row = msgspec.structs.replace(row, setting=msgspec.structs.replace(row.setting, publish=publish))
    record = msgspec.structs.replace(live.record, row=row)
    records.save(sessions.resources.places.sessions / row.session, record)
    with sessions.resources.names.change("publish") as change:
        change.renew(row)
    live.record = record
