"""What runs inside the directory's server: Lua, so that a batch is one call and each change one step. No I/O here.

Keys of the server (docs/PEERS.md has the table):

    {<ns, shard>}<digest>     incarnations of 16 bytes one after the other: who has the block; expires
    {mooncask}:node:<name>    incarnation, then a NodeRecord as msgpack; expires with cluster.ttl
    {mooncask}:nodes          the names, as a set

What stands in braces decides which server of a Cluster has the key: 64 shards a namespace.
"""

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

SHARDS = 64
HOLDERS_MAX = 16
"""Nodes that are remembered for one block; the oldest makes room."""
NODES_KEY = b"{mooncask}:nodes"
NODE_KEY = b"{mooncask}:node:"
TAG_BYTES = 8
"""Of a namespace's id. A location of a 16 byte key is 30 bytes with it, and 32 in the server's memory; one more, and it takes 48."""
_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def shard_of(key: bytes) -> int:
    """Of a block: keys are digests, so any byte will do."""
    return key[-1] % SHARDS


@lru_cache(256)
def shard_tags(ns_id: bytes) -> tuple[bytes, ...]:
    """What a namespace's locations begin with, shard by shard. Of the id there are 64 bits, printable: two namespaces that agree in
    them would cost a miss, not a wrong byte."""
    tag = base64.urlsafe_b64encode(ns_id[:TAG_BYTES]).rstrip(b"=")
    return tuple(b"{%b%c}" % (tag, letter) for letter in _LETTERS)


def locations(ns_id: bytes, keys: Sequence[bytes]) -> list[bytes]:
    """Where the server has these blocks' holders."""
    tags = shard_tags(ns_id)
    return [tags[key[-1] % SHARDS] + key for key in keys]


class Script(NamedTuple):
    """`digest`: by which the server knows it."""

    text: str
    digest: str


def _script(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_HELD = f"""
local function held_of(key)
  local held = redis.pcall('GET', key)
  if type(held) ~= 'string' then return false end
  return string.sub(held, 1, {16 * HOLDERS_MAX})
end
"""
"""Anything may stand in a server that others use too: what is no text is nobody, and no value is longer than ours are."""

ANNOUNCE = _script(
    f"""
local me, ttl = ARGV[1], ARGV[2]
local node, epoch = string.sub(me, 1, 8), string.sub(me, 9, 16)
local function later(one)
  for i = 1, 8 do
    local a, b = string.byte(one, 8 + i), string.byte(epoch, i)
    if a ~= b then return a > b end
  end
  return false
end
local shared, call = {{}}, redis.call
local function with_me(held, place)
  local kept = {{}}
  held = string.sub(held, 1, {16 * HOLDERS_MAX})
  for at = 1, #held - 15, 16 do
    local one = string.sub(held, at, at + 15)
    if string.sub(one, 1, 8) ~= node or later(one) then kept[#kept + 1] = one end
  end
  if #kept > 0 then shared[#shared + 1] = place end
  if #kept >= {HOLDERS_MAX} then table.remove(kept, 1) end
  kept[#kept + 1] = me
  return table.concat(kept)
end
local values = call('MGET', unpack(KEYS))
for i = 1, #KEYS do
  local held = values[i]
  if held == me then
    call('PEXPIRE', KEYS[i], ttl)
  else
    call('PSETEX', KEYS[i], ttl, held and with_me(held, i) or me)
  end
end
return shared
"""
)
"""KEYS: locations, each once, at most a few thousand; ARGV: incarnation, milliseconds. Older epochs of the same node go; a later one
stays, so that a run that is over can't take away what the next one said. Answers the places of those that other nodes have announced
as well. What is no text MGET takes for nothing. A key that is new costs one command: of what a server does for it, all but a tenth."""

WITHDRAW = _script(
    _HELD
    + """
local me, changed = ARGV[1], 0
for i = 1, #KEYS do
  local held, kept, found = held_of(KEYS[i]), {}, false
  if held then
    for at = 1, #held - 15, 16 do
      local one = string.sub(held, at, at + 15)
      if one == me then found = true else kept[#kept + 1] = one end
    end
  end
  if found then
    changed = changed + 1
    if #kept == 0 then redis.call('DEL', KEYS[i]) else redis.call('SET', KEYS[i], table.concat(kept), 'KEEPTTL') end
  end
end
return changed
"""
)
"""KEYS: locations; ARGV: incarnation. Takes out exactly this incarnation."""

RELEASE = _script(
    _HELD
    + """
local me, live, answers = ARGV[1], {}, {}
for i = 2, #ARGV do live[ARGV[i]] = true end
for i = 1, #KEYS do
  local held, kept, mine, other = held_of(KEYS[i]) or '', {}, false, false
  for at = 1, #held - 15, 16 do
    local one = string.sub(held, at, at + 15)
    if one == me then mine = true else
      kept[#kept + 1] = one
      if live[one] then other = true end
    end
  end
  if mine and other then redis.call('SET', KEYS[i], table.concat(kept), 'KEEPTTL') end
  if other then answers[i] = 1 elseif #kept > 0 then answers[i] = 2 else answers[i] = 0 end
end
return answers
"""
)
"""KEYS: locations; ARGV: incarnation, then those that are known to live. Takes this incarnation out where another one that lives
remains, in one step: of two nodes that would forget the same block one is refused. Answers 1 for each that may be forgotten, 0 where
nobody else is said to have it, 2 where only nodes are that the asker does not know to live."""
RELEASED, STRANGERS = 1, 2

SEEN = _script(
    """
local before = redis.pcall('GET', KEYS[1])
if type(before) ~= 'string' then before = false end
if redis.call('TYPE', KEYS[2]).ok ~= 'set' then redis.call('DEL', KEYS[2]) end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SADD', KEYS[2], ARGV[3])
return before
"""
)
"""KEYS: node, nodes; ARGV: record, milliseconds, name. Answers the record before."""

GONE = _script(
    """
local now = redis.pcall('GET', KEYS[1])
if type(now) == 'string' and string.sub(now, 1, 16) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('SREM', KEYS[2], ARGV[2])
end
return 1
"""
)
"""KEYS: node, nodes; ARGV: incarnation, name. This run of the node is over; a newer one's record stays."""
