"""s3fs as data programs use it: files in and out, folders listed, copied and removed.

Run as `s3fs_client.py BUCKET FOLDER`; endpoint, keys, region and trust come from the environment. Fails where bytes differ.
"""

import os
import sys
from pathlib import Path

import s3fs

MIB = 1 << 20


def main(bucket: str, folder: Path) -> None:
    client = {"region_name": os.environ["AWS_REGION"], "verify": os.environ.get("AWS_CA_BUNDLE")}
    files = s3fs.S3FileSystem(
        endpoint_url=os.environ["AWS_ENDPOINT_URL"], client_kwargs=client, use_listings_cache=False
    )
    body = os.urandom(12 * MIB)
    long, small = f"{bucket}/folder/a b+ü.bin", f"{bucket}/folder/small"
    with files.open(long, "wb", block_size=5 * MIB) as file:
        file.write(body)
    assert files.info(long)["size"] == len(body)
    with files.open(long, "rb") as file:
        file.seek(6 * MIB)
        assert file.read(1000) == body[6 * MIB :][:1000]
    files.pipe(small, b"hello")
    assert files.cat(small) == b"hello"
    assert sorted(files.ls(f"{bucket}/folder", detail=False)) == [long, small]
    files.copy(small, f"{bucket}/other")
    files.get(f"{bucket}/folder", str(folder / "back"), recursive=True)
    assert (folder / "back" / "a b+ü.bin").read_bytes() == body
    files.rm(f"{bucket}/folder", recursive=True)
    assert files.find(bucket) == [f"{bucket}/other"]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
