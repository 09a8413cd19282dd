"""What is told about captures."""

from waypoint.model.records import Capture
from waypoint.model.requests import CaptureFacts, LayerFacts, LayersFacts, ProcessFacts, TerminalFacts
from waypoint.session.facts import iso_time


def of(capture: Capture, names: list[str], files_bytes: int | None = None) -> CaptureFacts:
    """`names`: those that stand for it. `files_bytes`: of its files layer, for whom it was measured."""
    processes, terminal = capture.layers.processes, capture.layers.terminal
    machine, shell = capture.machine, capture.layers.shell
    return CaptureFacts(
        capture=capture.id,
        image=None,
        names=names,
        branch=capture.branch,
        parents=capture.parents,
        tier=capture.tier,
        reason=capture.reason,
        message=capture.message,
        created=iso_time(capture.created),
        durable=False,
        base=capture.setting.base,
        user=capture.setting.user.name,
        cwd=capture.setting.cwd,
        exit=capture.exit,
        paused_ms=capture.paused_ms,
        degraded=capture.degraded,
        environment=sorted(processes.env if processes else capture.setting.env),
        machine={"kernel": machine.kernel, "architecture": machine.architecture, "cpu": machine.cpu} if machine else {},
        layers=LayersFacts(
            files=LayerFacts(size_bytes=files_bytes),
            processes=ProcessFacts(
                size_bytes=processes.size_bytes,
                count=processes.count,
                programs=processes.programs,
                frozen_ms=processes.frozen_us / 1000,
                criu=processes.criu,
            )
            if processes
            else None,
            shell=LayerFacts(size_bytes=shell.size_bytes) if shell else None,
            terminal=TerminalFacts(size_bytes=terminal.size_bytes, rows=terminal.rows, cols=terminal.cols)
            if terminal
            else None,
        ),
    )
