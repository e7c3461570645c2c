"""Photos in object stores: S3, Google Cloud Storage, Azure (extra `store`).

mien label s3://bucket/prefix --out out

Credentials and endpoints come from the usual variables, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL. A request is
retried with growing pauses; an object that cannot be read then is an error row.
"""

import errno
import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from typing import IO, Any, Final

from mien.app.errors import LabelingError

RETRIES: Final = 4
RETRY_S: Final = 60.0  # No retry begins later than this after the first request.
STALLED_S: Final = 30.0  # A request that receives nothing for so long has failed.
_PAGE: Final = 1_000
_BLOCK: Final = 1 << 20


def objects(url: str) -> Iterator[tuple[str, int, str]]:
    """Key below the prefix, size and version of each object; the key is empty if `url` is itself an object.

    Raises: LabelingError.
    """
    import obstore

    store, prefix = open_store(url)
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
    import obstore

    store, path = open_store(url)
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
            "allow_http": True,  # It is used only if the endpoint is set to it.
        },
        retry_config={
            "max_retries": RETRIES,
            "retry_timeout": timedelta(seconds=RETRY_S),
            "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=5), "base": 2},
        },
    )


def open_store(url: str) -> tuple[Any, str]:
    """Store of a bucket, and the path in it. Raises: LabelingError."""
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    return _bucket(f"{scheme}://{bucket}"), path.rstrip("/")


def _version(meta: Any) -> str:
    return f"{meta['size']}:{meta['e_tag'] or meta['last_modified'].isoformat()}"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300]
