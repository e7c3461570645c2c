"""Photos in object stores and on web servers: S3, Google Cloud Storage, Azure (extra `store`), HTTP.

mien label s3://bucket/prefix --out out

Credentials and endpoints come from the usual variables, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL. A request is
retried with growing pauses; an object that cannot be read then is an error row.
"""

import errno
import http.client
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from typing import IO, Any, Final
from urllib.parse import quote

from mien.app.errors import LabelingError

RETRIES: Final = 4
RETRY_S: Final = 60.0  # no retry begins later than this after the first request
STALLED_S: Final = 30.0  # without a byte
_PAGE: Final = 1_000
_BLOCK: Final = 1 << 20
_TEMPORARY: Final = (408, 425, 429)
_ERRORS: Final = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 410: errno.ENOENT}


def is_web(url: str) -> bool:
    """Return whether a URL is that of a web server, which cannot be listed."""
    return url.startswith("http")


def objects(url: str) -> Iterator[tuple[str, int, str]]:
    """Key below the prefix, size and version of each object; the key is empty if `url` is itself an object.

    Raises: LabelingError.
    """
    import obstore

    store, prefix = _open(url)
    try:
        count = 0
        for page in store.list(prefix or None, chunk_size=_PAGE):
            for meta in page:
                count += 1
                yield meta["path"][len(prefix) :].lstrip("/"), meta["size"], _version(meta)
        if prefix and not count:
            meta = store.head(prefix)
            yield "", meta["size"], _version(meta)
    except (FileNotFoundError, obstore.exceptions.NotFoundError):
        return
    except obstore.exceptions.BaseError as error:
        raise LabelingError(f"{url} cannot be listed: {_first_line(error)}.") from error


def download(url: str, file: IO[bytes], most: int = sys.maxsize) -> None:
    """Write the first bytes of an object to a file. Raises: OSError, FileNotFoundError, PermissionError."""
    (_download_page if is_web(url) else _download_object)(url, file, most)


def check_store(url: str) -> None:
    """Check that a store can be opened. Raises: LabelingError."""
    if not is_web(url):
        _open(url)


@cache
def _bucket(bucket: str) -> Any:
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise LabelingError(f"{bucket}: obstore is not installed. Run `pip install obstore`.") from error
    stalled = timedelta(seconds=STALLED_S)
    return from_url(
        bucket,
        client_options={
            "timeout": timedelta(hours=6),
            "read_timeout": stalled,
            "connect_timeout": stalled,
            "allow_http": True,  # used only if the endpoint is set to it
        },
        retry_config={
            "max_retries": RETRIES,
            "retry_timeout": timedelta(seconds=RETRY_S),
            "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=5), "base": 2},
        },
    )


def _open(url: str) -> tuple[Any, str]:
    """Store of a bucket, and the path in it."""
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    return _bucket(f"{scheme}://{bucket}"), path.rstrip("/")


def _download_object(url: str, file: IO[bytes], most: int) -> None:
    import obstore

    store, path = _open(url)
    try:
        for block in store.get(path).stream(min_chunk_size=_BLOCK):
            file.write(bytes(block)[: most - file.tell()])
            if file.tell() == most:
                return
    except obstore.exceptions.NotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "no such object", url) from error
    except (obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError) as error:
        raise PermissionError(errno.EACCES, "access denied", url) from error
    except obstore.exceptions.BaseError as error:
        raise OSError(errno.EIO, _first_line(error), url) from error


def _download_page(url: str, file: IO[bytes], most: int) -> None:
    for attempt in range(RETRIES + 1):
        file.seek(0)
        file.truncate()
        try:
            request = urllib.request.Request(quote(url, safe="%/:=&?~#+!$,;'@()*[]"))  # noqa: S310  # `is_web`
            with urllib.request.urlopen(request, timeout=STALLED_S) as response:  # noqa: S310
                length = int(response.headers.get("Content-Length") or 0)
                while file.tell() < most and (block := response.read(min(_BLOCK, most - file.tell()))):
                    file.write(block)
            if file.tell() < min(length, most):
                raise http.client.IncompleteRead(b"", length - file.tell())
        except urllib.error.HTTPError as error:
            if (error.code < 500 and error.code not in _TEMPORARY) or attempt == RETRIES:
                number = _ERRORS.get(error.code, errno.EIO)  # which decides the class of the error
                raise OSError(number, f"the server replied {error.code}", url) from error
        except ValueError as error:  # of an address such as `http://[::1/a.zip`, or a length that is not a number
            raise OSError(errno.EINVAL, str(error), url) from error
        except (OSError, http.client.HTTPException) as error:
            if attempt == RETRIES:
                raise OSError(errno.EIO, str(error), url) from error
        else:
            return
        time.sleep(0.2 * 2**attempt)


def _version(meta: Any) -> str:
    return f"{meta['size']}:{meta['e_tag'] or meta['last_modified'].isoformat()}"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300]
