"""The tokens of the configuration for nodes' daemons, [nodes.NAME], read once at the start."""

from collections.abc import Mapping

from mooncask.conductor.serving.config import NodeSection, told_or_read
from mooncask.conductor.serving.dispatch.node_tokens import NodeTokens
from mooncask.errors import ConfigError

DEFAULT = "default"


def node_tokens(sections: Mapping[str, NodeSection]) -> NodeTokens:
    """Raises ConfigError for a file that can't be read, and for a token that no header can carry."""
    read = {name: _token(name, section) for name, section in sections.items()}
    return NodeTokens(read, read.pop(DEFAULT, ""))


def _token(name: str, section: NodeSection) -> str:
    token = told_or_read(section.admin_token, section.admin_token_file, f"nodes.{name}.admin_token_file")
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(f"nodes.{name}.admin_token", "(not shown)", "must be printable ASCII in one line")
    return token
