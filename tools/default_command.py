"""Groups of commands in which the name of one may be left out: `namespaces --json` is `namespaces list --json`."""

from typing import Any, ClassVar

from typer.core import TyperGroup


class DefaultsTo(TyperGroup):
    """Takes what names none of its commands as the arguments of `default`."""

    default: ClassVar[str]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [self.default, *args]
        return super().parse_args(ctx, args)
