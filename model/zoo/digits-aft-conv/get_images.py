#!/usr/bin/env python3
"""Fetches the images: 1,797 hand-written digits of 8 x 8 pixels, the test set of UCI's "Optical
Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998; CC BY 4.0).

They come from Debian's package python3-sklearn; the wheel scikit-learn on PyPI has the same file. Needs
apt-get and dpkg-deb.

    model/zoo/digits-aft-conv/get_images.py [FOLDER]     default: images/ next to this script
"""
import gzip
import hashlib
import pathlib
import subprocess
import sys
import tempfile

SHA256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"


def main():
    default = pathlib.Path(__file__).resolve().parent / "images"
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(["apt-get", "download", "-q", "python3-sklearn"], cwd=work, check=True)
        package = next(pathlib.Path(work).glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", package, work], check=True)
        data = gzip.decompress(next(pathlib.Path(work).rglob("digits.csv.gz")).read_bytes())
    digest = hashlib.sha256(data).hexdigest()
    if digest != SHA256:
        sys.exit(f"digits.csv: sha256 {digest} is not the one that the shipped model was trained on")
    (out / "digits.csv").write_bytes(data)
    print(f"{out / 'digits.csv'}  {len(data)} bytes  sha256 {digest}")


if __name__ == "__main__":
    main()
