#!/usr/bin/env python3
"""Fetches the training text: Jane Austen's six novels, public domain (the author died in 1817).

They come from Debian's package r-cran-janeaustenr (MIT), where they lie in R's lazy-load format; this
reads that format with the standard library alone. Needs apt-get and dpkg-deb.

    model/zoo/austen-aft-local/get_text.py [FOLDER]     default: text/ next to this script
"""
import hashlib
import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

SHA256 = {
    "emma":
        "7c67b5985c6d0de1efaeb5d342d52cb82c38083c40e2295129e30e87ee690ebe",
    "mansfieldpark":
        "98bc90519cdf4ef663ad7de2734bb529435ef24f7abbde6bb1a50898871dafe9",
    "northangerabbey":
        "51f91bbe0517db8e65cff009b097ce0a1836124c4e0532ac19e6c0cad982abed",
    "persuasion":
        "8061549557aebd2fd6e353d18d9197cb707029112bd52d4d8b174583a925848a",
    "prideprejudice":
        "dfc684d4f857fa938268f9ab9c5567b64bd0691251eca959644adeabe6287a4d",
    "sensesensibility":
        "105e1651fe93bed7130078578efd31e0c557d68667ba672ddc876f735b30fe09",
}


class RReader:
    """Just enough of R's serialisation format (XDR) for lists, strings, numbers and data frames."""

    def __init__(self, data):
        assert data[:2] == b"X\n", "not XDR"
        self.data, self.pos, self.references = data, 2, []
        version = self.integer()
        self.pos += 8  # versions of the writer and of the oldest reader
        if version == 3:
            length = self.integer()
            self.pos += length  # name of the native encoding

    def integer(self):
        self.pos += 4
        return struct.unpack_from(">i", self.data, self.pos - 4)[0]

    def array(self, code, size):
        count = self.integer()
        self.pos += count * size
        return list(struct.unpack_from(f">{count}{code}", self.data, self.pos - count * size))

    def item(self):
        flags = self.integer()
        kind, has_attributes, has_tag = flags & 255, flags & 512, flags & 1024
        if kind in (241, 242, 251, 252, 253, 254):  # base environments, missing, nil
            return None
        if kind == 255:  # reference to a symbol
            return self.references[(flags >> 8) - 1]
        if kind == 1:  # symbol
            self.references.append(self.item())
            return self.references[-1]
        if kind == 2:  # pairlist
            if has_attributes:
                self.item()
            tag = self.item() if has_tag else None
            value = self.item()
            return [(tag, value)] + (self.item() or [])
        if kind == 9:  # one string
            length = self.integer()
            if length == -1:
                return None
            self.pos += length
            return self.data[self.pos - length:self.pos].decode("utf-8", "replace")
        if kind == 238:  # compact form of a vector: class, state, attributes
            self.item()
            state = self.item()
            self.item()
            return state
        if kind in (10, 13):
            value = self.array("i", 4)
        elif kind == 14:
            value = self.array("d", 8)
        elif kind in (16, 19):
            value = [self.item() for _ in range(self.integer())]
        else:
            raise ValueError(f"R type {kind} at {self.pos}")
        if has_attributes:
            names = dict(self.item()).get("names")
            if names and kind == 19:
                return dict(zip(names, value))
        return value


def novels(base):
    """Yields (name, text) from the database BASE.rdx, BASE.rdb."""
    index = RReader(zlib.decompress(base.with_suffix(".rdx").read_bytes(), 47)).item()
    assert index["compressed"] in ([1], [True]), "not zlib"
    database = base.with_suffix(".rdb").read_bytes()
    for name, (offset, length) in index["variables"].items():
        # Four bytes of uncompressed length, then zlib.
        lines = RReader(zlib.decompress(database[offset + 4:offset + length])).item()
        yield name, "\n".join(line or "" for line in lines) + "\n"


def main():
    default = pathlib.Path(__file__).resolve().parent / "text"
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(["apt-get", "download", "-q", "r-cran-janeaustenr"], cwd=work, check=True)
        package = next(pathlib.Path(work).glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", package, work], check=True)
        for name, text in novels(next(pathlib.Path(work).rglob("data/Rdata.rdb")).with_suffix("")):
            data = text.encode()
            digest = hashlib.sha256(data).hexdigest()
            if SHA256.get(name) != digest:
                sys.exit(f"{name}: sha256 {digest} is not the one that the shipped model was trained on")
            (out / f"{name}.txt").write_bytes(data)
            print(f"{out / name}.txt  {len(data)} bytes  sha256 {digest}")


if __name__ == "__main__":
    main()
