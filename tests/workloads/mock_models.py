"""A mock model: Anthropic's Messages API and OpenAI's Responses API with streamed answers.

It runs inside sessions as `mock_models.py PORT LOG` and needs only Python. The answer is `ANSWER <n> to <message>`, n
being the number of the user's messages so far. A message with the word `slowly` is answered by one word a second, up to
`word 9`. A message `run COMMAND` lets the agent run this shell command with its own tool, before the answer. Each
message is written to LOG as a line.
"""

import http.server
import itertools
import json
import socketserver
import sys
import time
from collections.abc import Iterable, Iterator

Event = dict[str, object]
LOG = ""


def texts(content: object) -> list[str]:
    """The texts of a message, without those that the agent adds."""
    if isinstance(content, str):
        return [content]
    parts = [part["text"] for part in content if "text" in part] if isinstance(content, list) else []
    return [text for text in parts if not text.lstrip().startswith("<")]


def spoken(messages: Iterable[Event]) -> list[str]:
    """The user's messages, the oldest first."""
    said = [texts(one.get("content")) for one in messages if one.get("role") == "user"]
    return [text[-1].strip() for text in said if text]


def words(said: list[str]) -> Iterator[str]:
    """The parts of the answer, as they are streamed."""
    yield f"ANSWER {len(said)} to {said[-1] if said else 'nothing'}"
    if said and "slowly" in said[-1]:
        for number in range(1, 10):
            time.sleep(1)
            yield f" word {number}"


def command_in(said: list[str]) -> str:
    """The shell command that the last message asks for; "" if it asks for none."""
    return said[-1].removeprefix("run ") if said and said[-1].startswith("run ") else ""


def is_done(messages: object, kinds: tuple[str, ...]) -> bool:
    """Whether the last item, or the last part of it, is the result of a tool."""
    last = messages[-1] if isinstance(messages, list) and messages else {}
    parts = last.get("content")
    return last.get("type") in kinds or (isinstance(parts, list) and bool(parts) and parts[-1].get("type") in kinds)


def of_messages(body: Event) -> Iterator[Event]:
    """The events of Anthropic's Messages API."""
    usage = {"input_tokens": 10, "output_tokens": 5}
    message = {
        "id": f"msg_{time.time_ns()}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [],
    }
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    command = command_in(spoken(body["messages"]))  # type: ignore[arg-type]
    if command and body.get("tools") and not is_done(body["messages"], ("tool_result",)):
        use = {"type": "tool_use", "id": f"toolu_{time.time_ns()}", "name": "Bash", "input": {}}
        yield {"type": "content_block_start", "index": 0, "content_block": use}
        given = json.dumps({"command": command, "description": "Run it"})
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": given}}
        yield {"type": "content_block_stop", "index": 0}
        yield {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": usage}
        yield {"type": "message_stop"}
        return
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    for word in words(spoken(body["messages"])):  # type: ignore[arg-type]
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
    yield {"type": "content_block_stop", "index": 0}
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": usage}
    yield {"type": "message_stop"}


def function_call(body: Event, command: str) -> Event:
    """A call of the tool that runs shell commands, as the agent has described it."""
    tools = {one.get("name"): one for one in body.get("tools") or []}  # type: ignore[attr-defined]
    name = next((one for one in ("exec_command", "shell_command", "shell") if one in tools), "shell")
    given = {"cmd": command} if name == "exec_command" else {"command": command}
    if name == "shell":
        given = {"command": ["bash", "-c", command]}  # type: ignore[dict-item]
    number = time.time_ns()
    call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed"}
    return {**call, "name": name, "arguments": json.dumps(given)}


def of_responses(body: Event) -> Iterator[Event]:
    """The events of OpenAI's Responses API."""
    numbers = itertools.count()
    response: Event = {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}

    def event(kind: str, **facts: object) -> Event:
        return {"type": kind, "sequence_number": next(numbers), **facts}

    def item(status: str, text: str) -> Event:
        content = [{"type": "output_text", "text": text, "annotations": []}] if text else []
        return {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": content}

    yield event("response.created", response=response)
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    command = command_in(spoken(body["input"]))  # type: ignore[arg-type]
    if command and not is_done(body["input"], ("function_call_output",)):
        call = function_call(body, command)
        yield event("response.output_item.added", output_index=0, item=call)
        yield event("response.output_item.done", output_index=0, item=call)
        done = {**response, "status": "completed", "output": [call], "usage": usage}
        yield event("response.completed", response=done)
        return
    yield event("response.output_item.added", output_index=0, item=item("in_progress", ""))
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    yield event("response.content_part.added", **place, part={"type": "output_text", "text": "", "annotations": []})
    text = ""
    for word in words(spoken(body["input"])):  # type: ignore[arg-type]
        text += word
        yield event("response.output_text.delta", **place, delta=word)
    yield event("response.output_text.done", **place, text=text)
    done = item("completed", text)
    yield event("response.output_item.done", output_index=0, item=done)
    yield event("response.completed", response={**response, "status": "completed", "output": [done], "usage": usage})


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer({"data": [], "models": []})

    def do_HEAD(self) -> None:
        self.answer({})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        path = self.path.partition("?")[0]
        if path.endswith("/count_tokens"):
            self.answer({"input_tokens": 10})
        elif path.endswith("/messages"):
            self.stream(body, of_messages(body), spoken(body["messages"]))
        elif path.endswith("/responses"):
            self.stream(body, of_responses(body), spoken(body["input"]))
        else:
            self.answer({})

    def answer(self, facts: Event) -> None:
        data = json.dumps(facts).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def stream(self, body: Event, events: Iterable[Event], said: list[str]) -> None:
        with open(LOG, "a") as log:
            log.write(f"{said[-1] if said else ''}\n")
        if not body.get("stream"):
            content = [{"type": "text", "text": "title"}]
            facts = {
                "id": "msg_2",
                "type": "message",
                "role": "assistant",
                "model": body.get("model"),
                "content": content,
            }
            self.answer({**facts, "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for event in events:
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


if __name__ == "__main__":
    LOG = sys.argv[2]
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
