"""A conversation in ChatML's format, with the expected answers to its questions."""

import json
import re
from dataclasses import dataclass, field


@dataclass
class Chat:
    messages: list[dict] = field(default_factory=list)
    tools: list[dict] = field(default_factory=list)
    checks: list[tuple[int, str, dict]] = field(default_factory=list)
    """(message, measure, expected content of the answer)."""

    def ask(self, question: str, answer: str, measure: str = "", **expected) -> None:
        self.messages.append({"role": "user", "content": question})
        self.messages.append({"role": "assistant", "content": answer})
        if measure:
            self.checks.append((len(self.messages) - 1, measure, expected))


def call_text(call: dict) -> str:
    f = call["function"]
    return (
        '<tool_call>\n{"name": '
        + json.dumps(f["name"])
        + ', "arguments": '
        + json.dumps(f["arguments"])
        + "}\n</tool_call>"
    )


def render(chat: Chat) -> str:
    """The conversation as text, as rendered by template.py."""
    first = chat.messages[0]
    system = first["content"] if first["role"] == "system" else ""
    if chat.tools:
        system = (
            (system + "\n\n" if system else "")
            + "# Tools\n"
            + "".join(json.dumps(t["function"]) + "\n" for t in chat.tools)
            + 'To call a tool, answer <tool_call>{"name": ..., "arguments": ...}</tool_call>.'
        )
    out = [f"<|im_start|>system\n{system}<|im_end|>\n"] if system else []
    for m in chat.messages:
        role, content = m["role"], m["content"]
        if role == "system":
            continue
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        elif m.get("tool_calls"):
            content = "".join(call_text(c) for c in m["tool_calls"])
        out.append(f"<|im_start|>{role}\n{content}<|im_end|>\n")
    return "".join(out)


def length(text: str) -> int:
    """Approximate number of tokens of the text: words, digits and punctuation."""
    return len(re.findall(r"[a-zA-Z]+|[0-9]|[^\w\s]", text)) + 4
