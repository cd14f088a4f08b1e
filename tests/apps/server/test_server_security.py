"""Attacks on the server: each test tries one and expects a refusal."""

from __future__ import annotations

import asyncio
import io
import json
import re
import socket
import struct
import zipfile
from pathlib import Path
from typing import Any

import click
import pytest
from PIL import Image
from starlette.testclient import TestClient

from itl.apps.server.security import HEADERS
from itl.cli.commands.serve import _listen, serve
from support.malformed_images import decompression_bomb
from support.server_client import BASE, LIMITS, TOKEN, client_for, draft_sizes, upload
from support.serving import png, shape_picture

STATIC = Path(__file__).parents[3] / "src/itl/apps/server/static"
EVIL = "http://evil.example"


def zip_of(entries: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return out.getvalue()


# ---------------------------------------------------------------------------------------------------- who may connect


def test_listens_on_this_machine_only_by_default() -> None:
    host = next(option for option in serve.params if option.name == "host")
    assert isinstance(host, click.Option)
    assert host.default == "127.0.0.1"
    with _listen(str(host.default), 0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"
        port = listening.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
        others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)}
        for address in others - {"127.0.0.1"} | {"127.0.0.2"}:  # a socket at 0.0.0.0 answers at 127.0.0.2, too
            with pytest.raises(OSError):
                socket.create_connection((address, port), timeout=2)


@pytest.mark.parametrize(
    "path", ["/", "/static/app.js", "/api/model", "/api/state", "/api/predict", "/api/openapi.json"]
)
@pytest.mark.parametrize("token", [None, "wrong", TOKEN[:-1]])
def test_everything_needs_the_token(tmp_path: Path, path: str, token: str | None) -> None:
    with client_for(tmp_path / "new", token) as client:
        assert client.get(path).status_code == 401
        assert client.get(path, params={"token": token or ""}).status_code == 401
        assert client.get(path, headers={"Cookie": f"itl-token-8484={token or ''}"}).status_code == 401


def test_address_with_the_token_sets_a_cookie_that_other_sites_cannot_use(tmp_path: Path) -> None:
    with client_for(tmp_path / "new", None) as client:
        answer = client.get("/", params={"token": TOKEN})
        assert answer.status_code == 200
        assert answer.headers["set-cookie"] == f"itl-token-8484={TOKEN}; Path=/; HttpOnly; SameSite=Strict"
        assert client.get("/api/state").status_code == 200


@pytest.mark.parametrize("given", ["old", "€", "x\r\nX-Injected: 1"])
def test_cookie_is_never_set_to_another_value_than_the_token(client: TestClient, given: str) -> None:
    answer = client.get("/", params={"token": given})  # the header has the right token
    assert answer.status_code == 200
    assert not {"set-cookie", "x-injected"} & set(answer.headers)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8484", "127.0.0.1", "127.0.0.1:80", "127.0.0.1.evil.example:8484", ""]
)
def test_dns_rebinding_is_refused(client: TestClient, host: str) -> None:
    answer = client.get("/api/state", headers={"Host": host})
    assert answer.status_code == 421
    assert "model" not in answer.json()


def test_host_names_can_be_allowed(tmp_path: Path) -> None:
    with client_for(tmp_path / "new", allowed_hosts=("models.example",)) as client:
        assert client.get("/api/model", headers={"Host": "models.example"}).status_code == 200
        assert client.get("/api/model", headers={"Host": "other.example"}).status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8000"},
        {"Origin": f"{BASE}.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_cross_site_requests_are_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    """The browser of a user who has the cookie visits a hostile page."""
    with client_for(tmp_path / "new", None) as client:
        client.get("/", params={"token": TOKEN})
        files = [("image", ("a.png", png(shape_picture("circle", 1))))]
        assert client.post("/api/pictures", data={"class": "x"}, files=files, headers=headers).status_code == 403
        assert client.get("/api/state", headers=headers).status_code == 403
        assert draft_sizes(client) == {}


def test_cookie_alone_changes_nothing(tmp_path: Path) -> None:
    with client_for(tmp_path / "new", None) as client:
        client.get("/", params={"token": TOKEN})
        assert client.post("/api/undo", json={}).status_code == 403
        assert client.post("/api/undo", json={}, headers={"Origin": BASE}).status_code == 400  # nothing to undo


def test_form_of_another_page_cannot_send_json(client: TestClient) -> None:
    answer = client.post("/api/undo", content=b"{}", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415


# ------------------------------------------------------------------------------------------------------------ headers


def test_every_answer_has_the_security_headers(client: TestClient) -> None:
    for answer in (client.get("/"), client.get("/static/app.js"), client.get("/api/nothing"), client.get("/api/state")):
        for name, value in HEADERS.items():
            assert answer.headers[name] == value


def test_policy_allows_own_scripts_only() -> None:
    policy = dict(part.strip().partition(" ")[::2] for part in HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_page_has_no_inline_code_and_no_other_host() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=|javascript:", page)
    for file in STATIC.iterdir():
        text = file.read_text()
        assert not re.findall(r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[\w-]+\.\w+", text), file.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)


# ------------------------------------------------------------------------------------------------------------ uploads


def test_number_of_files_is_limited(client: TestClient) -> None:
    files = [(f"{k}.png", png(shape_picture("circle", k, 16))) for k in range(LIMITS.files + 1)]
    answer = upload(client, *files)
    assert answer.status_code == 400
    assert draft_sizes(client) == {}


def test_number_of_pictures_in_a_lesson_is_limited(client: TestClient) -> None:
    for start in (0, 15):
        upload(client, *[(f"{k}.png", png(shape_picture("circle", k, 16))) for k in range(start, start + 15)])
    answer = upload(client, ("one more.png", png(shape_picture("square", 1, 16))))
    assert answer.status_code == 400
    assert "at most 30 pictures" in answer.json()["error"]
    assert draft_sizes(client) == {"cat": 30}


@pytest.mark.parametrize("declared", [True, False])
def test_size_of_a_request_is_limited(client: TestClient, declared: bool) -> None:
    data = bytes(LIMITS.request_bytes + 1)
    content: Any = data if declared else iter([data[: 1 << 19], data[1 << 19 :]])
    answer = client.post("/api/predict", content=content, headers={"Content-Type": "image/png"})
    assert answer.status_code == 413


def test_size_of_a_file_is_limited(client: TestClient) -> None:
    noise = Image.effect_noise((480, 480), 200).convert("RGB")
    data = png(noise)
    assert LIMITS.file_bytes < len(data) < LIMITS.request_bytes
    answer = upload(client, ("large.png", data))
    assert answer.status_code == 400
    assert "make it smaller" in answer.json()["error"]


def test_decompression_bomb_is_not_decoded(client: TestClient) -> None:
    """A small file that declares 30,000 x 30,000 pixels."""
    answer = upload(client, ("bomb.png", decompression_bomb(30_000, 30_000))).json()
    assert answer["added"] == 0
    assert "pixels" in answer["problems"][0]["why"]
    over = png(Image.new("RGB", (501, 500)))  # one column more than allowed
    assert "pixels" in upload(client, ("over.png", over)).json()["problems"][0]["why"]


def paths_around(folder: Path) -> set[Path]:
    """All paths in a folder, and the names next to it; the folders of other tests hold thousands of files."""
    return {*folder.rglob("*"), *folder.parent.iterdir()}


@pytest.mark.parametrize("name", ["../../evil.png", "/etc/evil.png", "a/../../evil.png", "..\\evil.png", "C:/evil.png"])
def test_zip_with_a_path_outside_is_refused(client: TestClient, tmp_path: Path, name: str) -> None:
    before = paths_around(tmp_path)
    picture = png(shape_picture("circle", 1, 16))
    answer = client.post("/api/pictures", files=[("image", ("a.zip", zip_of({"cat/1.png": picture, name: picture})))])
    assert answer.status_code == 400
    assert "unsafe path" in answer.json()["error"]
    assert draft_sizes(client) == {}
    assert not [path for path in paths_around(tmp_path) - before if "evil" in path.name]


def test_zip_bomb_is_refused(client: TestClient) -> None:
    declared = zip_of({f"cat/{k}.png": bytes(190_000) for k in range(4)})
    assert len(declared) < 5000
    answer = client.post("/api/pictures", files=[("image", ("a.zip", declared))])
    assert answer.status_code == 400
    assert "when unpacked" in answer.json()["error"]
    one = client.post("/api/pictures", files=[("image", ("a.zip", zip_of({"cat/1.png": bytes(500_000)})))])
    assert "larger than" in one.json()["error"]


def test_zip_that_declares_wrong_sizes_is_refused(client: TestClient) -> None:
    data = bytearray(zip_of({"cat/1.png": bytes(500_000)}))
    position = data.rindex(b"PK\x01\x02") + 24  # the uncompressed size in the central directory
    data[position : position + 4] = struct.pack("<I", 10)
    answer = client.post("/api/pictures", files=[("image", ("a.zip", bytes(data)))])
    assert answer.status_code == 400 or answer.json()["added"] == 0
    assert sum(draft_sizes(client).values()) == 0


@pytest.mark.parametrize("entries", [21, 300])
def test_number_of_zip_entries_is_limited(client: TestClient, entries: int) -> None:
    answer = client.post(
        "/api/pictures", files=[("image", ("a.zip", zip_of({f"cat/{k}.png": b"" for k in range(entries)})))]
    )
    assert answer.status_code == 400


# -------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "name",
    [
        "<img src=x onerror=alert(1)>",
        "../../../etc/passwd",
        "/tmp/evil",
        "a\u202eb" * 3,
        "con",
        "=1+1",
        "cat\\..\\dog",
        "%2e%2e",
    ],
)
def test_class_names_never_become_paths(client: TestClient, tmp_path: Path, name: str) -> None:
    before = paths_around(tmp_path)
    answer = upload(client, ("1.png", png(shape_picture("circle", 1, 16))), name=name)
    if answer.status_code == 200:
        assert draft_sizes(client) == {name: 1}
    new = [path.relative_to(tmp_path) for path in paths_around(tmp_path) - before]
    allowed = re.compile(r"new/pictures(/(files(/[0-9a-f]{32}\.png)?|draft(/itl-pictures\.json)?))?")
    assert all(allowed.fullmatch(path.as_posix()) for path in new), new


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\0b", "x" * 101])
def test_unusable_class_names_are_refused(client: TestClient, name: str) -> None:
    picture = client.post(
        "/api/pictures", data={"class": "cat"}, files=[("image", ("1.png", png(shape_picture("circle", 1))))]
    )
    assert picture.status_code == 200
    answer = client.post("/api/classes/rename", json={"old": "cat", "new": name})
    assert answer.status_code == 400
    assert draft_sizes(client) == {"cat": 1}


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".hidden", "/tmp/x", "x" * 61, "", "a\\b", "nul\0"])
def test_model_names_are_plain_file_names(tmp_path: Path, name: str) -> None:
    (tmp_path / "models").mkdir()
    with client_for(tmp_path / "models") as client:
        assert client.post("/api/models", json={"name": name}).status_code == 400
        assert client.get("/api/model", params={"model": name or "?"}).status_code == 400
        assert client.get("/api/model", params={"model": "../animals"}).status_code == 400


@pytest.mark.parametrize("path", ["..%2f..%2fetc%2fpasswd", "%00", "a" * 32, "A" * 32, "*", "?" * 32])
def test_picture_ids_are_digests(client: TestClient, path: str) -> None:
    assert client.get(f"/api/pictures/{path}").status_code in (400, 404, 405)


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"]
)
def test_only_the_static_files_of_the_page_are_served(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "Starlette" not in answer.text


def test_stored_files_are_served_as_newly_encoded_pictures(client: TestClient) -> None:
    """A picture with HTML behind its pixels comes back as a JPEG without it."""
    upload(client, ("page.html", png(shape_picture("circle", 1)) + b"<script>alert(1)</script>"))
    (one,) = client.get("/api/state").json()["draft"]
    answer = client.get(f"/api/pictures/{one['pictures'][0]}")
    assert answer.headers["content-type"] == "image/jpeg"
    assert b"script" not in answer.content
    assert Image.open(io.BytesIO(answer.content)).size == (64, 64)


def test_csv_has_no_formulas(model: Path) -> None:
    with client_for(model) as client:
        assert client.post("/api/rename", json={"old": "cat", "new": "=HYPERLINK(1)"}).status_code == 200
        sent = [("image", ("1.png", png(shape_picture(k, n, 8)))) for k in ("circle", "square") for n in range(8)]
        client.post("/api/try", files=sent)
        rows = client.get("/api/export/predictions.csv").text.splitlines()[1:]
    assert rows
    assert not [row for row in rows for cell in row.split(",") if cell.startswith("=")]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"old": 1}', b"[" * 100_000, b'"' + b"a" * 1_100_000])
def test_malformed_bodies_are_refused_in_one_line(client: TestClient, body: bytes) -> None:
    answer = client.post("/api/rename", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 413)
    assert "\n" not in answer.json()["error"]
    assert json.loads(answer.content)["error"]


@pytest.mark.parametrize("kind", ["image/png", "multipart/form-data; boundary=a", "application/json"])
@pytest.mark.parametrize("path", ["/api/pictures", "/api/predict", "/api/try", "/api/rename"])
def test_client_that_disconnects_during_an_upload_is_no_error(client: TestClient, path: str, kind: str) -> None:
    """An exception would be printed in the terminal, as a traceback, whenever a page is closed too early."""
    headers = {"host": "127.0.0.1:8484", "authorization": f"Bearer {TOKEN}", "content-type": kind}
    scope = {
        "type": "http", "method": "POST", "path": path, "query_string": b"", "headers":
        [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    messages = [{"type": "http.request", "body": b"--a", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(client.app(scope, receive, send))  # type: ignore[arg-type]
    assert 400 <= sent[0]["status"] < 500
