"""The Hub's side of uploads: repositories, LFS objects, commits on top of a parent,
branches and tags.

Functions from a server's state and a request to an answer; :mod:`tests.servers.hub`
routes to them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from tests.servers.hub import HubServer, Repo

LARGE = 10 << 20


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any = b""
    said: str = ""


def read_body(stream: BinaryIO, headers: Message) -> bytes:
    """Read a request's body, of a stated length or in chunks."""
    if headers.get("Transfer-Encoding", "").lower() != "chunked":
        return stream.read(int(headers.get("Content-Length") or 0))
    found = bytearray()
    while size := int(stream.readline().split(b";")[0], 16):
        found += stream.read(size)
        stream.readline()
    stream.readline()
    return bytes(found)


def create_repo(server: HubServer, asked: Mapping[str, Any]) -> Answer:
    name = (
        f"{asked['organization']}/{asked['name']}"
        if asked.get("organization")
        else asked["name"]
    )
    if asked.get("organization") in server.forbidden:
        return Answer(
            403,
            said="You don't have the rights to create a dataset under this namespace",
        )
    if name in server.repos:
        said = "You already created this dataset repo"
        return Answer(
            409, {"error": said, "url": f"{server.endpoint}/datasets/{name}"}, said
        )
    private = asked.get("visibility") == "private" or bool(asked.get("private"))
    server.repo(
        name,
        {".gitattributes": "*.parquet filter=lfs\n"},
        private=private and not server.born_public,
    )
    return Answer(200, {"url": f"{server.endpoint}/datasets/{name}", "id": name})


def lfs_batch(server: HubServer, repo: Repo, asked: Mapping[str, Any]) -> Answer:
    if repo.id in server.forbidden:
        return Answer(403, said="You don't have write access to this repository")
    return Answer(
        200,
        {
            "transfer": "basic",
            "objects": [_action(server, entry) for entry in asked["objects"]],
        },
    )


def _action(server: HubServer, entry: Mapping[str, Any]) -> dict[str, Any]:
    oid = entry["oid"]
    if oid in server.lfs:
        return {"oid": oid, "size": entry["size"]}
    return {
        "oid": oid,
        "size": entry["size"],
        "actions": {
            "upload": {"href": f"{server.endpoint}/lfs-store/{oid}"},
            "verify": {"href": f"{server.endpoint}/lfs-verify"},
        },
    }


def store_object(server: HubServer, oid: str, body: bytes) -> Answer:
    if hashlib.sha256(body).hexdigest() != oid:
        return Answer(400, said="the content is not what its name says")
    server.lfs[oid] = body
    return Answer(200)


def verify_object(server: HubServer, asked: Mapping[str, Any]) -> Answer:
    there = (
        asked["oid"] in server.lfs and len(server.lfs[asked["oid"]]) == asked["size"]
    )
    return Answer(200 if there else 404, {})


def _preupload(server: HubServer, repo: Repo, revision: str, body: bytes) -> Answer:
    from tests.servers.hub import entry, is_lfs

    asked = json.loads(body)
    sha = repo.resolve(revision)
    if sha is None:
        return Answer(404, said=f"Invalid rev id: {revision}")
    tree = repo.commits[sha]
    ignore = asked.get("gitIgnore", tree.get(".gitignore", b"").decode())
    patterns = [
        line for line in ignore.splitlines() if line and not line.startswith("#")
    ]
    files: list[dict[str, Any]] = []
    for file in asked["files"]:
        path = file["path"]
        large = is_lfs(path) or file["size"] > LARGE
        found: dict[str, Any] = {
            "path": path,
            "uploadMode": "lfs" if large else "regular",
            "shouldIgnore": any(fnmatch(path, pattern) for pattern in patterns),
        }
        if path in tree:
            there = entry(path, tree[path])
            found["oid"] = there["lfs"]["oid"] if "lfs" in there else there["oid"]
        files.append(found)
    return Answer(200, {"files": files})


def _commit(server: HubServer, repo: Repo, branch: str, body: bytes) -> Answer:
    lines = [json.loads(line) for line in body.splitlines()]
    if repo.id in server.forbidden:
        return Answer(403, said="You don't have write access to this repository")
    with server.lock:
        head = repo.refs[branch]
        if lines[0]["value"].get("parentCommit", head) != head:
            return Answer(
                412, said="A commit has happened since. Please refresh and try again."
            )
        tree = dict(repo.commits[head])
        for line in lines[1:]:
            value = line["value"]
            match line["key"]:
                case "file":
                    tree[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile" if value["oid"] in server.lfs:
                    tree[value["path"]] = server.lfs[value["oid"]]
                case "deletedFile":
                    del tree[value["path"]]
                case _:
                    return Answer(
                        400,
                        said=f"{line['key']} {value.get('path')} cannot be committed",
                    )
        sha = repo.commit(tree, branch)
        repo.messages[sha] = lines[0]["value"]["summary"]
    return Answer(
        200,
        {
            "success": True,
            "commitOid": sha,
            "commitUrl": f"{server.endpoint}/commit/{sha}",
        },
    )


def _branch(server: HubServer, repo: Repo, name: str, body: bytes) -> Answer:
    if name in repo.refs:
        return Answer(409, said="Reference already exists")
    start = repo.resolve(json.loads(body or b"{}").get("startingPoint") or "main")
    if start is None:
        return Answer(404, said="Invalid starting point")
    repo.refs[name] = start
    return Answer(200, {})


def _tag(server: HubServer, repo: Repo, revision: str, body: bytes) -> Answer:
    name = json.loads(body)["tag"]
    if name in repo.refs:
        return Answer(409, said="Tag already exists")
    sha = repo.resolve(revision)
    if sha is None:
        return Answer(404, said="Invalid rev id")
    repo.refs[name] = sha
    repo.tags.add(name)
    return Answer(200, {})


WRITES: dict[str, Callable[[HubServer, Repo, str, bytes], Answer]] = {
    "preupload": _preupload,
    "commit": _commit,
    "branch": _branch,
    "tag": _tag,
}
