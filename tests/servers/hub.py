"""A Hub on loopback that the real `huggingface_hub` accepts: repositories, commits,
gates, and faults on demand.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NoReturn, Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.servers.hubwriting import (
    WRITES,
    Answer,
    create_repo,
    lfs_batch,
    read_body,
    store_object,
    verify_object,
)

LFS_SUFFIXES = (".parquet", ".arrow", ".gz", ".zst", ".tar")
TOKEN = "hf_test_only_abcdefghijklmnop"


@dataclass
class Repo:
    """A dataset's repository. Commits are whole trees; a branch or tag is a name of
    one.

    Attributes:
        private: for users with a token; without one it seems not to be there.
        gated: its files are for users with access; its list of files is public.
        granted: whether the one token there is has been granted access.
    """

    id: str
    private: bool = False
    gated: bool = False
    granted: bool = True
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)
    messages: dict[str, str] = field(default_factory=dict)

    def commit(
        self, files: Mapping[str, bytes | str], ref: str = "main", *, tag: bool = False
    ) -> str:
        """Make a commit that holds exactly `files`; return its hash."""
        tree = {
            path: data.encode() if isinstance(data, str) else data
            for path, data in files.items()
        }
        name = f"{self.id} {len(self.commits)} {sorted((p, hashlib.sha1(d).hexdigest()) for p, d in tree.items())}"
        sha = hashlib.sha1(name.encode()).hexdigest()
        self.commits[sha], self.refs[ref] = tree, sha
        if tag:
            self.tags.add(ref)
        return sha

    def resolve(self, revision: str) -> str | None:
        sha = self.refs.get(revision, revision)
        return sha if sha in self.commits else None


@dataclass
class Fault:
    """What to do to the next `times` requests whose path holds `where`.

    Attributes:
        status: answer with this status, 0 to serve as usual.
        cut: close the connection after so many bytes of the body, -1 not to.
    """

    where: str
    status: int = 0
    times: int = 1
    cut: int = -1
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """A request that arrived."""

    method: str
    path: str
    host: str
    authorized: bool
    range: str | None


class HubServer:
    """The server; :func:`hub` starts and stops it.

    Attributes:
        page_size: entries of one page of a listing.
        ranges: whether a request for a part of a file is honoured.
        lfs: contents that were uploaded, by sha256; commits name them.
        forbidden: organizations and repositories that the one token there is may not
            write to.
        born_public: whether new repositories are public, whatever was asked for.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.lfs: dict[str, bytes] = {}
        self.forbidden: set[str] = set()
        self.born_public = False
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.page_size = 1000
        self.ranges = True
        self.lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.02,), daemon=True
        )

    @property
    def port(self) -> int:
        return self._http.server_address[1]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def repo(
        self, name: str, files: Mapping[str, bytes | str] | None = None, **options: Any
    ) -> Repo:
        """Create a repository, with a first commit on main if there are `files`."""
        made = self.repos[name] = Repo(name, **options)
        if files is not None:
            made.commit(files)
        return made

    def asked(self, part: str) -> list[Seen]:
        """Return the requests whose path holds `part`."""
        return [seen for seen in self.seen if part in seen.path]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def fault(self, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.where in path:
                    fault.times -= 1
                    return fault
        return None


@contextmanager
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


def blob_id(data: bytes) -> str:
    """Return git's id of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_lfs(path: str) -> bool:
    return path.endswith(LFS_SUFFIXES)


def entry(path: str, data: bytes) -> dict[str, Any]:
    """Return a file as the Hub's listings have it."""
    if not is_lfs(path):
        return {"type": "file", "path": path, "size": len(data), "oid": blob_id(data)}
    sha256 = hashlib.sha256(data).hexdigest()
    lfs = {"oid": sha256, "size": len(data), "pointerSize": 134}
    return {
        "type": "file",
        "path": path,
        "size": len(data),
        "oid": blob_id(sha256.encode()),
        "lfs": lfs,
    }


def _folders(tree: Mapping[str, bytes]) -> list[dict[str, Any]]:
    names = {
        "/".join(path.split("/")[:n])
        for path in tree
        for n in range(1, path.count("/") + 1)
    }
    return [
        {"type": "directory", "path": n, "size": 0, "oid": blob_id(n.encode())}
        for n in sorted(names)
    ]


class _Reply(Exception):
    def __init__(self, status: int, body: Any = b"", **headers: str) -> None:
        super().__init__(status)
        self.status, self.body = status, body
        self.headers = {
            name.replace("_", "-"): value for name, value in headers.items()
        }


def _handler(server: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body in one packet: else a delayed acknowledgement costs 40 ms.
        wbufsize = -1

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            self._serve()

        do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

        def _serve(self) -> None:
            body = read_body(self.rfile, self.headers)
            host, token = (
                self.headers.get("Host", ""),
                self.headers.get("Authorization"),
            )
            server.seen.append(
                Seen(
                    self.command,
                    self.path,
                    host,
                    token is not None,
                    self.headers.get("Range"),
                )
            )
            fault = server.fault(self.path)
            try:
                if fault and fault.status:
                    raise _Reply(
                        fault.status,
                        b"",
                        **{k.replace("-", "_"): v for k, v in fault.headers.items()},
                    )
                self._route(body, token)
            except _Reply as reply:
                self._send(reply, fault.cut if fault else -1)

        def _send(self, reply: _Reply, cut: int) -> None:
            data = (
                reply.body
                if isinstance(reply.body, bytes)
                else json.dumps(reply.body).encode()
            )
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if "Content-Length" not in reply.headers:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "HEAD":
                return
            self.wfile.write(data if cut < 0 else data[:cut])
            if cut >= 0:
                self.close_connection = True

        def _route(self, body: bytes, token: str | None) -> None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            path = url.path
            if path.startswith("/cdn/"):
                raise self._content(self._blob(path.removeprefix("/cdn/")), {})
            # Storage's own host: the signed URL is the permission.
            if path.startswith("/lfs-store/"):
                self._answer(
                    store_object(server, path.removeprefix("/lfs-store/"), body)
                )
            if token is not None and token != f"Bearer {TOKEN}":
                raise _Reply(
                    401, X_Error_Message="Invalid credentials in Authorization header"
                )
            if path == "/api/validate-yaml":
                raise _Reply(200, {"errors": [], "warnings": []})
            if path == "/api/repos/create":
                self._answer(create_repo(server, json.loads(body)))
            if path == "/lfs-verify":
                self._answer(verify_object(server, json.loads(body)))
            if match := re.fullmatch(
                r"/datasets/(.+)\.git/info/lfs/objects/batch", path
            ):
                repo, _ = self._repo(match.group(1), token)
                self._answer(lfs_batch(server, repo, json.loads(body)))
            if path.startswith("/api/datasets/"):
                repo, rest = self._repo(path.removeprefix("/api/datasets/"), token)
                self._api(repo, rest, query, body, token)
            if path.startswith("/datasets/"):
                repo, rest = self._repo(path.removeprefix("/datasets/"), token)
                self._resolve(repo, rest, token)
            raise _Reply(404)

        def _answer(self, answer: Answer) -> NoReturn:
            raise _Reply(
                answer.status,
                answer.body,
                **({"X_Error_Message": answer.said} if answer.said else {}),
            )

        def _repo(self, path: str, token: str | None) -> tuple[Repo, str]:
            parts = path.split("/")
            for length in (2, 1):
                repo = server.repos.get("/".join(parts[:length]))
                if repo and (not repo.private or token):
                    return repo, "/".join(parts[length:])
            # Whoever is not logged in cannot tell a private repository from none.
            raise _Reply(
                404 if token else 401,
                X_Error_Code="RepoNotFound",
                X_Error_Message="Repository not found",
            )

        def _gate(self, repo: Repo, token: str | None) -> None:
            if repo.gated and not (token and repo.granted):
                raise _Reply(
                    403 if token else 401,
                    X_Error_Code="GatedRepo",
                    X_Error_Message=f"Access to dataset {repo.id} is restricted.",
                )

        def _commit(self, repo: Repo, revision: str) -> str:
            sha = repo.resolve(unquote(revision))
            if sha is None:
                raise _Reply(
                    404,
                    X_Error_Code="RevisionNotFound",
                    X_Error_Message=f"Invalid rev id: {revision}",
                )
            return sha

        def _api(
            self,
            repo: Repo,
            rest: str,
            query: dict[str, str],
            body: bytes,
            token: str | None,
        ) -> None:
            what, _, rest = rest.partition("/")
            if self.command == "POST" and what in WRITES:
                self._answer(WRITES[what](server, repo, unquote(rest), body))
            if what in ("", "revision"):
                sha = self._commit(repo, rest or "main")
                siblings = [{"rfilename": path} for path in sorted(repo.commits[sha])]
                gated = "manual" if repo.gated else False
                raise _Reply(
                    200,
                    {
                        "id": repo.id,
                        "sha": sha,
                        "private": repo.private,
                        "gated": gated,
                        "siblings": siblings,
                    },
                )
            if what == "auth-check":
                self._gate(repo, token)
                raise _Reply(200, {})
            if what == "refs":
                raise _Reply(200, self._refs(repo))
            if what == "tree":
                revision, _, folder = rest.partition("/")
                raise self._tree(
                    repo, self._commit(repo, revision), unquote(folder), query
                )
            if what == "paths-info":
                tree = repo.commits[self._commit(repo, rest)]
                wanted = parse_qs(body.decode()).get("paths", [])
                if self.headers.get("Content-Type", "").startswith("application/json"):
                    wanted = json.loads(body)["paths"]
                known = {
                    e["path"]: e
                    for e in [*(entry(p, d) for p, d in tree.items()), *_folders(tree)]
                }
                raise _Reply(200, [known[path] for path in wanted if path in known])

        def _refs(self, repo: Repo) -> dict[str, Any]:
            def of(names: list[str], kind: str) -> list[dict[str, str]]:
                return [
                    {
                        "name": n.removeprefix("refs/convert/"),
                        "ref": f"refs/{kind}/{n}",
                        "targetCommit": repo.refs[n],
                    }
                    for n in names
                ]

            converts = [n for n in repo.refs if n.startswith("refs/convert/")]
            branches = [
                n for n in repo.refs if n not in converts and n not in repo.tags
            ]
            return {
                "branches": of(branches, "heads"),
                "tags": of(sorted(repo.tags), "tags"),
                "converts": of(converts, "convert"),
            }

        def _tree(
            self, repo: Repo, sha: str, folder: str, query: dict[str, str]
        ) -> _Reply:
            tree = repo.commits[sha]
            entries = sorted(
                [*(entry(p, d) for p, d in tree.items()), *_folders(tree)],
                key=lambda e: e["path"],
            )
            inside = [
                e for e in entries if not folder or e["path"].startswith(folder + "/")
            ]
            if folder and not inside:
                return _Reply(
                    404,
                    X_Error_Code="EntryNotFound",
                    X_Error_Message=f"{folder} does not exist",
                )
            if query.get("recursive", "").lower() != "true":
                depth = folder.count("/") + 1 if folder else 0
                inside = [e for e in inside if e["path"].count("/") == depth]
            start = int(query.get("cursor", "0"))
            page = inside[start : start + server.page_size]
            headers = {}
            if start + server.page_size < len(inside):
                # The host is another one on purpose: whoever follows it must not take a
                # token along.
                again = "&".join(f"{k}={v}" for k, v in query.items() if k != "cursor")
                following = f"{self.path.partition('?')[0]}?{again}&cursor={start + server.page_size}"
                headers["Link"] = (
                    f'<http://localhost:{server.port}{following}>; rel="next"'
                )
            return _Reply(200, page, **headers)

        def _resolve(self, repo: Repo, rest: str, token: str | None) -> None:
            match = re.fullmatch(r"resolve/([^/]+)/(.+)", rest)
            if match is None:
                raise _Reply(404)
            sha, path = self._commit(repo, match.group(1)), unquote(match.group(2))
            self._gate(repo, token)
            data = repo.commits[sha].get(path)
            if data is None:
                raise _Reply(
                    404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found"
                )
            headers = {"X-Repo-Commit": sha}
            if is_lfs(path):
                sha256 = hashlib.sha256(data).hexdigest()
                headers |= {
                    "X-Linked-Size": str(len(data)),
                    "X-Linked-ETag": f'"{sha256}"',
                }
                headers["Location"] = f"http://localhost:{server.port}/cdn/{sha256}"
                raise _Reply(302, b"", **headers)
            raise self._content(data, headers | {"ETag": f'"{blob_id(data)}"'})

        def _blob(self, sha256: str) -> bytes:
            if sha256 in server.lfs:
                return server.lfs[sha256]
            for repo in server.repos.values():
                for tree in repo.commits.values():
                    for data in tree.values():
                        if hashlib.sha256(data).hexdigest() == sha256:
                            return data
            raise _Reply(404)

        def _content(self, data: bytes, headers: dict[str, str]) -> _Reply:
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            headers = {"Accept-Ranges": "bytes", **headers}
            if not asked or not server.ranges:
                return _Reply(200, data, **headers)
            start, stop = (
                int(asked.group(1)),
                min(int(asked.group(2) or len(data)) + 1, len(data)),
            )
            if start >= len(data):
                return _Reply(
                    416, b"", **{**headers, "Content-Range": f"bytes */{len(data)}"}
                )
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            return _Reply(206, data[start:stop], **headers)

    return Handler
