"""A model's own chat template, rendered as transformers does it: jinja2 in its sandbox, with the few helpers templates use."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from mooncask.errors import BadRequest

Chat = Sequence[Mapping[str, Any]]


class ChatTemplate:
    """Raises BadRequest for messages that the template refuses. Templates can't reach anything but what they are given."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        self._template = environment.from_string(source)
        self._special = dict(special)

    def render(self, messages: Chat, tools: Sequence[Any] | None, answer_next: bool) -> str:
        """The conversation as text, up to where the assistant's answer begins if `answer_next`."""
        from jinja2.exceptions import TemplateError

        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=list(tools) if tools else None,
                add_generation_prompt=answer_next,
                **self._special,
            )
        except (TemplateError, TypeError, ValueError, KeyError) as exc:
            raise BadRequest(f"messages: the model's chat template refuses them: {exc}") from exc


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **more: Any) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def _refuse(message: str) -> NoReturn:
    from jinja2.exceptions import TemplateError

    raise TemplateError(message)
