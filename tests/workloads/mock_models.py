"""A mock model: Anthropic's Messages API and OpenAI's Responses API with streamed answers.

It runs inside sessions as `mock_models.py PORT LOG` and needs only Python. The answer is `ANSWER <n> to <message>`, n
being the number of the user's messages so far. A message with the word `slowly` is answered by one word a second, up to
`word 9`. Each message is written to LOG as a line.
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


def of_messages(body: Event) -> Iterator[Event]:
    """The events of Anthropic's Messages API."""
    usage = {"input_tokens": 10, "output_tokens": 5}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "content": []}
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    for word in words(spoken(body["messages"])):  # type: ignore[arg-type]
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
    yield {"type": "content_block_stop", "index": 0}
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": usage}
    yield {"type": "message_stop"}


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
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
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
