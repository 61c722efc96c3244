"""Renders tests/data/templates with Jinja2, set up like transformers' chat templates, and compares the
results with tests/data/golden/templates, or writes these with --write. Run by scripts/compare/templates."""

import datetime
import json
import pathlib
import sys

import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data"
GOLDEN = DATA / "golden" / "templates"
# Jinja2's own errors, and Python's errors raised by a template.
REFUSALS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class Generation(jinja2.ext.Extension):
    """`{% generation %}`: renders its body in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.datetime.now(datetime.timezone.utc).strftime(form)
    return made


def rendered(source, variables):
    """The text, or None if the template or Jinja2 raises an error."""
    try:
        return environment().from_string(source).render(**variables)
    except REFUSALS:
        return None


def conversations(source, shared):
    """Results of a template for each case of conversations.json."""
    for number, messages in enumerate(shared["conversations"]):
        for tools in (None, shared["tools"]):
            yield rendered(
                source,
                {
                    "messages": messages,
                    "tools": tools,
                    "documents": None,
                    "bos_token": "<s>",
                    "eos_token": "</s>",
                    # As in src/tokenizer/chat/jinja_golden.rs.
                    "add_generation_prompt": tools is not None or number % 2 == 0,
                },
            )


def main():
    write = sys.argv[1:] == ["--write"]
    if sys.argv[1:] and not write:
        sys.exit("templates: --write is the only option")
    folder = DATA / "templates"
    shared = json.loads((folder / "conversations.json").read_text())
    single = json.loads((folder / "expressions.json").read_text())
    made = {"expressions": [rendered(source, single["values"]) for source in single["templates"]]}
    for path in folder.glob("*.jinja"):
        made[path.stem] = list(conversations(path.read_text(), shared))
    kept = {path.stem: json.loads(path.read_text()) for path in GOLDEN.glob("*.json")}
    if write:
        for name, texts in made.items():
            (GOLDEN / f"{name}.json").write_text(json.dumps(texts, ensure_ascii=False, indent=0) + "\n")
        kept |= made
    differ = sorted(name for name in made | kept if made.get(name) != kept.get(name))
    if differ:
        sys.exit(f"templates: Jinja2's results differ for {', '.join(differ)}")
    n_texts = sum(len(texts) for texts in made.values())
    print(f"templates: {len(made) - 1} templates, {n_texts} texts, match Jinja2's")


if __name__ == "__main__":
    main()
