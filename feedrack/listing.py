"""The keys under a prefix, by ListObjectsV2."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import unquote_plus

from lxml import etree

from feedrack.client import Client
from feedrack.errors import RequestRefused
from feedrack.signing import Query

# Nobody trains on packs' own files; a gateway does not list them, a plain endpoint does.
RESERVED = ".feedrack/"


class Listed(NamedTuple):
    """An object as a listing gives it; `etag` unquoted, `modified` with a zone."""

    key: str
    size_bytes: int
    etag: str
    modified: datetime


class Page(NamedTuple):
    """One answer: objects and common prefixes, and where to go on, or None."""

    objects: list[Listed]
    prefixes: list[str]
    token: str | None


def walk(client: Client, prefix: str, delimiter: str = "") -> Iterator[Page]:
    """All pages of a listing. Raises the client's errors."""
    token: str | None = None
    while True:
        query: list[tuple[str, str]] = [("list-type", "2"), ("encoding-type", "url")]
        query.append(("prefix", prefix))
        if delimiter:
            query.append(("delimiter", delimiter))
        if token is not None:
            query.append(("continuation-token", token))
        page = ask_page(client, tuple(query))
        yield page
        if page.token is None:
            return
        if page.token == token:
            raise RequestRefused(f"s3://{client.endpoint.bucket}: a listing that does not go on")
        token = page.token


def ask_page(client: Client, query: Query) -> Page:
    """One page of a listing."""
    answer = client.ask("GET", None, query)
    try:
        return parse_page(answer.body)
    except ValueError as error:
        raise RequestRefused(f"s3://{client.endpoint.bucket}: not a listing: {error}") from error


def object_keys(client: Client, prefix: str) -> Iterator[bytes]:
    """The keys of all objects under a prefix, as UTF-8: without packs' files and folder marks."""
    for page in walk(client, prefix):
        for item in page.objects:
            mark = item.key.endswith("/") and item.size_bytes == 0
            if not mark and not item.key.startswith(RESERVED):
                yield item.key.encode("utf-8", "surrogatepass")


def parse_page(body: bytes) -> Page:
    """A ListObjectsV2 answer. ValueError where it is none."""
    try:
        root = etree.fromstring(body, etree.XMLParser(resolve_entities=False, no_network=True))
    except etree.XMLSyntaxError as error:
        raise ValueError("not XML") from error
    if root is None or etree.QName(root).localname != "ListBucketResult":
        raise ValueError("another document")
    encoded = _child(root, "EncodingType") == "url"
    objects: list[Listed] = []
    prefixes: list[str] = []
    for element in root:
        if not isinstance(element.tag, str):
            continue
        match etree.QName(element).localname:
            case "Contents":
                objects.append(_listed(element, encoded=encoded))
            case "CommonPrefixes":
                prefixes.append(_name(_child(element, "Prefix"), encoded=encoded))
    token = _child(root, "NextContinuationToken")
    truncated = _child(root, "IsTruncated") == "true"
    if truncated and not token:
        raise ValueError("more to come, and no token")
    return Page(objects, prefixes, token if truncated else None)


def _listed(element: etree._Element, *, encoded: bool) -> Listed:
    found = {
        etree.QName(child).localname: child.text or ""
        for child in element
        if isinstance(child.tag, str)
    }
    try:
        modified = datetime.fromisoformat(found["LastModified"])
        return Listed(
            _name(found["Key"], encoded=encoded),
            int(found["Size"]),
            found.get("ETag", "").strip('"'),
            modified if modified.tzinfo is not None else modified.replace(tzinfo=UTC),
        )
    except KeyError as error:
        raise ValueError(f"an object without its {error.args[0]}") from error


def _child(element: etree._Element, name: str) -> str:
    return next(
        (
            child.text or ""
            for child in element
            if isinstance(child.tag, str) and etree.QName(child).localname == name
        ),
        "",
    )


def _name(text: str, *, encoded: bool) -> str:
    return unquote_plus(text, errors="surrogatepass") if encoded else text
