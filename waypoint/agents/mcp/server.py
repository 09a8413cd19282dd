"""The MCP server without its transport: answers requests by tools and resources."""

import traceback
from collections.abc import Callable
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
)

from waypoint import __version__
from waypoint.agents.mcp import resources
from waypoint.agents.mcp.all_tools import TOOLS
from waypoint.agents.mcp.calls import Call, Cancelled
from waypoint.agents.mcp.errors import error_facts, error_text
from waypoint.agents.mcp.opening import INSTRUCTIONS, NAME, TITLE
from waypoint.agents.mcp.outputs import Outputs
from waypoint.agents.mcp.toolbox import plain
from waypoint.model import plainjson
from waypoint.model.errors import Failed, UnknownName, WaypointError, of_machine

MOST_CALLS = 200  # at the same time; further calls wait
PROGRESS_S = 0.5
GONE = "waypoint.gone"
"""In the scope of an HTTP request: an anyio.Event that is set when its client has disconnected."""
Context: TypeAlias = ServerRequestContext[Any, Any]
Act = Callable[[Call], object]


class Service:
    """The handlers of one server, for all its clients."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._outputs = Outputs()
        self._calls: set[Call] = set()
        self._idle = anyio.Event()
        self._threads = anyio.CapacityLimiter(MOST_CALLS)

    def server(self) -> Server[Any]:
        return Server(
            NAME,
            title=TITLE,
            version=__version__,
            instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
        )

    async def end_calls(self) -> None:
        """Cancel all calls, and wait until their commands have ended."""
        while self._calls:
            for call in self._calls:
                call.cancel()
            await self._idle.wait()

    async def _list_tools(self, ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult.model_validate({"tools": [one.describe() for one in TOOLS.values()]})

    async def _call_tool(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        try:
            tool = TOOLS.get(params.name)
            if tool is None:
                raise UnknownName("call", f"the tool {params.name[:60]!r}", "there is none", "see tools/list")
            found = await self._carry_out(ctx, lambda call: tool.act(call, **tool.bind(params.arguments or {})))
        except WaypointError as error:
            return _refused(error, self._home)
        value = plain(found)
        content = [{"type": "text", "text": plainjson.encode(value)}]
        return CallToolResult.model_validate({"content": content, "structuredContent": value})

    async def _list_resources(self, ctx: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        found = await self._try(ctx, lambda call: resources.listed(call.client))
        return ListResourcesResult.model_validate({"resources": found})

    async def _list_templates(self, ctx: Context, params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult.model_validate({"resourceTemplates": resources.TEMPLATES})

    async def _read_resource(self, ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        uri = str(params.uri)
        found = await self._try(ctx, lambda call: resources.read(call.client, uri))
        return ReadResourceResult.model_validate({"contents": [{"uri": uri, **found}]})

    async def _try(self, ctx: Context, act: Act) -> Any:  # noqa: ANN401
        try:
            return await self._carry_out(ctx, act)
        except WaypointError as error:
            facts = error_facts(error, self._home)
            raise MCPError(code=INVALID_PARAMS, message=error_text(error, self._home), data=facts) from error

    async def _carry_out(self, ctx: Context, act: Act) -> object:
        """Call `act` with a Call, in a thread. If the client cancels or leaves, end the call, and wait for that. Any
        exception becomes a WaypointError.
        """
        call = Call(self._home, self._outputs)
        self._calls.add(call)
        if len(self._calls) == 1:
            self._idle = anyio.Event()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_watch, call)
                group.start_soon(_watch_client, call, ctx)
                group.start_soon(_report, call, ctx)
                with anyio.CancelScope(shield=True):
                    outcome = await anyio.to_thread.run_sync(_outcome, act, call, limiter=self._threads)
                group.cancel_scope.cancel()
        finally:
            self._calls.discard(call)
            if not self._calls:
                self._idle.set()
        if isinstance(outcome, WaypointError):
            raise outcome
        return outcome


def _outcome(act: Act, call: Call) -> object:
    """What `act` returns, or a WaypointError in place of any exception: exceptions would become a group."""
    try:
        call.check()
        return act(call)
    except WaypointError as error:
        return error
    except Cancelled:
        return Failed("finish", "the call", "it was cancelled", "call the tool again")
    except TimeoutError:
        return Failed(
            "end", "the command", "it does not end, although it was killed", "look for it with `exec` or `run`"
        )
    except OSError as error:
        said = error.strerror or str(error)
        return Failed("finish", "the call", said, "repair this, and call again", code=of_machine(error.errno))
    except Exception as error:  # a client must get an answer, and other calls go on
        traceback.print_exc()
        said = f"{type(error).__name__}: {error}"
        return Failed("finish", "the call", said, "this is a bug in Waypoint: its stderr has more")


async def _watch(call: Call) -> None:
    """When the call is cancelled, end its commands."""
    try:
        await anyio.sleep_forever()
    finally:
        call.cancel()


async def _watch_client(call: Call, ctx: Context) -> None:
    """When the client of an HTTP request disconnects, end the call."""
    gone = ctx.request.scope.get(GONE) if ctx.request is not None else None
    if gone is not None:
        await gone.wait()
        call.cancel()


async def _report(call: Call, ctx: Context) -> None:
    """Tell the client how the call goes on, if it wants to know."""
    said = 0
    while True:
        await anyio.sleep(PROGRESS_S)
        size, line = call.progress()
        if size > said:
            said = size
            try:
                await ctx.session.report_progress(float(size), message=line or None)
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):  # the client has gone
                return


def _refused(error: WaypointError, home: str) -> CallToolResult:
    content = [{"type": "text", "text": error_text(error, home)}]
    meta = {"waypoint/error": error_facts(error, home)}
    return CallToolResult.model_validate({"content": content, "isError": True, "_meta": meta})
