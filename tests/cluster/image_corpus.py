"""Odd but legal images, made by hand: each case a list of layers, each layer a list of tar members in their order.

Cases that mind nothing but their own folder share one image (`batch`), each below a folder with its name; the rest stand alone.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000").decode(errors="surrogateescape")
TIME = 1_600_000_000


@dataclass(frozen=True, kw_only=True)
class Member:
    """A member of a layer's tar."""

    name: str
    type: bytes = tarfile.REGTYPE
    mode: int = 0o644
    data: bytes = b""
    target: str = ""
    mtime: float = TIME
    owner: int = 0
    xattrs: dict[str, str] = field(default_factory=dict)
    pax: dict[str, str] = field(default_factory=dict)
    device: tuple[int, int] = (0, 0)


def f(name: str, data: bytes | str = b"", mode: int = 0o644, **more: object) -> Member:
    """A file."""
    return Member(name=name, data=data.encode() if isinstance(data, str) else data, mode=mode, **more)  # type: ignore[arg-type]


def d(name: str, mode: int = 0o755, **more: object) -> Member:
    """A folder."""
    return Member(name=name, type=tarfile.DIRTYPE, mode=mode, **more)  # type: ignore[arg-type]


def link(name: str, target: str, **more: object) -> Member:
    """A symbolic link."""
    return Member(name=name, type=tarfile.SYMTYPE, mode=0o777, target=target, **more)  # type: ignore[arg-type]


def hard(name: str, target: str, mode: int = 0o644, **more: object) -> Member:
    """A hard link; its target is named from the case's folder."""
    return Member(name=name, type=tarfile.LNKTYPE, target=target, mode=mode, **more)  # type: ignore[arg-type]


def node(name: str, type_: bytes, major: int = 0, minor: int = 0) -> Member:
    """A device or a pipe."""
    return Member(name=name, type=type_, device=(major, minor))


def gone(path: str) -> Member:
    """A whiteout."""
    folder, _, name = path.rpartition("/")
    return f(f"{folder}/.wh.{name}" if folder else f".wh.{name}")


def opaque(folder: str) -> Member:
    """A folder that hides what is below it."""
    return f(f"{folder}/.wh..wh..opq")


def sparse(name: str, size: int, data: bytes, at: int) -> Member:
    """A file with a hole before and after its data, in the PAX form 0.1 of GNU tar."""
    pax = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.name": name, "GNU.sparse.size": str(size)}
    pax |= {"GNU.sparse.numblocks": "1", "GNU.sparse.map": f"{at},{len(data)}"}
    return Member(name=name, data=data, pax=pax)


Layers = Sequence[Sequence[Member]]

LONG = "n" * 120
# engine: Docker 20.10 unpacks it, too. like_umoci: the tree is umoci's; docs/guides/images.md says why where it is not.
BATCH: dict[str, Layers] = {
    "plain": [[d("a"), f("a/b", "1")]],
    "no-parents": [[f("a/b/c", "1"), f("a/d", "2")]],
    "parents-later": [[f("a/b", "1"), d("a", 0o700)]],
    "whiteout-file": [[f("x", "1"), f("y", "2")], [gone("x")]],
    "whiteout-folder": [[d("x"), f("x/y", "1"), d("z")], [gone("x")]],
    "whiteout-deep": [[d("a"), d("a/b"), f("a/b/c"), f("a/b/d")], [d("a"), d("a/b"), gone("a/b/c")]],
    "whiteout-twice": [[f("x", "1")], [gone("x")], [gone("x")]],
    "whiteout-of-nothing": [[d("a")], [gone("nothing")]],
    "whiteout-of-link": [[f("t", "1"), link("x", "t")], [gone("x")]],
    "whiteout-one-name": [[f("x", "1"), hard("y", "x")], [gone("x")]],
    "opaque": [[d("o"), f("o/old", "1")], [d("o"), opaque("o"), f("o/new", "2")]],
    "opaque-last": [[d("o"), f("o/old", "1")], [d("o"), f("o/new", "2"), opaque("o")]],
    "opaque-empty": [[d("o"), f("o/old", "1")], [d("o"), opaque("o")]],
    "opaque-deep": [[d("o"), d("o/p"), f("o/p/q", "1")], [d("o"), opaque("o"), d("o/p")]],
    "opaque-mode": [[d("o", 0o700), f("o/x")], [d("o", 0o711), opaque("o")]],
    "opaque-in-the-middle": [[d("o"), f("o/a")], [d("o"), opaque("o"), f("o/b")], [d("o"), f("o/c")]],
    "file-over-folder": [[d("p"), f("p/q", "1")], [f("p", "2")]],
    "folder-over-file": [[f("p", "1")], [d("p"), f("p/q", "2")]],
    "folder-over-link": [[d("t"), f("t/x"), link("p", "t")], [d("p"), f("p/q", "2")]],
    "link-over-folder": [[d("p"), f("p/q", "1")], [link("p", "elsewhere")]],
    "link-over-file": [[f("p", "1")], [link("p", "t")]],
    "file-over-link": [[f("t", "1"), link("p", "t")], [f("p", "2")]],
    "mode-of-folder-changes": [[d("x", 0o700), f("x/y")], [d("x", 0o755)]],
    "seven-layers": [[d("x"), f("x/f", str(i) * i)] for i in range(7)],
    "hard": [[f("z", "abc"), hard("a", "z")]],
    "hard-chain": [[f("c", "abc"), hard("b", "c"), hard("a", "b")]],
    "hard-across-folders": [[d("p"), d("q"), f("q/f", "1"), hard("p/f", "q/f")]],
    "hard-first-replaced-above": [[f("a", "1"), hard("b", "a"), hard("c", "a")], [f("a", "2")]],
    "hard-empty-file": [[f("a"), hard("b", "a")]],
    "hard-setuid": [[f("a", "1", 0o4755), hard("b", "a", 0o4755)]],
    "hard-symlink": [[link("a", "t"), hard("b", "a")]],
    "hard-pipe": [[node("a", tarfile.FIFOTYPE), hard("b", "a")]],
    "hard-device": [[node("a", tarfile.CHRTYPE, 1, 3), hard("b", "a")]],
    "hard-capability": [
        [
            f("a", "1", 0o755, xattrs={"security.capability": CAPABILITY}),
            hard("b", "a", 0o755, xattrs={"security.capability": CAPABILITY}),
        ]
    ],
    "hard-many": [[f("a", "x" * 9000), *(hard(f"l{i}", "a") for i in range(40))]],
    "hard-in-both-layers": [[f("a", "1"), hard("b", "a")], [f("a", "2"), hard("b", "a")]],
    "symlinks": [[link("abs", "/etc/x"), link("up", "../../x"), link("dangling", "no"), link("self", "self")]],
    "symlink-long": [[link("x", "t" * 300)]],
    "symlink-odd-bytes": [[link("x", "a b\\c'\"é")]],
    "usrmerge": [[d("usr"), d("usr/lib"), link("lib", "usr/lib"), f("lib/x", "1")]],
    "usrmerge-deep": [[d("u"), d("u/l"), link("l", "u/l"), f("l/a/b", "1"), d("l/a/c")]],
    "usrmerge-chain": [[d("u"), link("v", "u"), link("w", "v"), f("w/x", "1")]],
    "usrmerge-up": [[d("p"), d("q"), link("p/l", "../q"), f("p/l/x", "1")]],
    "usrmerge-hard": [[d("u"), link("l", "u"), f("u/x", "1"), hard("y", "l/x")]],
    "devices": [
        [node("null", tarfile.CHRTYPE, 1, 3), node("disk", tarfile.BLKTYPE, 8, 1), node("p", tarfile.FIFOTYPE)]
    ],
    "modes": [[*(f(f"f{m:o}", "x", m) for m in (0, 0o111, 0o444, 0o755, 0o1777, 0o2755, 0o4755, 0o7777))]],
    "folder-modes": [[*(d(f"d{m:o}", m) for m in (0, 0o111, 0o500, 0o711, 0o1777, 0o2775))]],
    "owners": [[f("a", owner=1000), f("b", owner=65534), f("c", owner=2_000_000), d("e", owner=7)]],
    "owner-huge": [[f("a", pax={"uid": "4294967294"}), f("b", "1")]],
    "capability": [[f("ping", "1", 0o755, xattrs={"security.capability": CAPABILITY})]],
    "capability-below": [[f("p", "1", xattrs={"security.capability": CAPABILITY})], [f("q", "2")]],
    "capability-replaced": [[f("p", "1", xattrs={"security.capability": CAPABILITY})], [f("p", "2")]],
    "user-xattr": [[f("x", "1", xattrs={"user.kit": "words = \n"})]],
    "user-xattr-on-folder": [[d("x", xattrs={"user.kit": "1"}), f("x/y")]],
    "trusted-xattr": [[f("x", "1", xattrs={"trusted.kit": "1"})]],
    "empty-names-of-owners": [[f("x", pax={"uname": "nobody", "gname": "nogroup"})]],
    "names-odd": [[f("with blank"), f('quote"s'), f("back\\slash"), f("ünïcode"), f("tab\there"), f("new\nline")]],
    "names-glob": [[f("a*b"), f("a?b"), f("[ab]"), f("!x"), f("{a,b}"), f("#c"), f("-dash"), f("~")]],
    "names-not-utf8": [[f("latin-\udce9"), d("d\udcff"), f("d\udcff/x")]],
    "names-dots": [[f("..."), f("..x"), f(".hidden"), f("a..b"), d(".d"), f(".d/.e")]],
    "names-long": [[f(LONG), d("d" * 100), f(f"{'d' * 100}/{'e' * 100}"), f(f"{'d' * 100}/{'e' * 101}")]],
    "names-255": [[f("y" * 255)]],
    "names-deep": [[f("/".join(["deep"] * 40))]],
    "names-walk-order": [[d("a"), f("a/z"), f("a-b"), f("a.b"), f("a b"), f("a0"), f("a\x01")]],
    "names-dot-slash": [[d("./x/"), f("./x/./y"), f("x//z")]],
    "names-wh-inside": [[f("a.wh.b", "1"), f("wh.x", "2")]],
    "time-zero": [[f("x", mtime=0), d("e", mtime=0)]],
    "time-before-1970": [[f("x", "1", pax={"mtime": "-1000"})]],
    "time-after-2106": [[f("x", "1", pax={"mtime": "5000000000"})]],
    "time-fraction": [[f("x", "1", pax={"mtime": "1600000000.75"})]],
    "time-fraction-before-1970": [[f("x", "1", pax={"mtime": "-0.5"})]],
    "sparse": [[sparse("s", 300_000, b"data" * 128, 131_072)]],
    "zeros": [[f("z", bytes(300_000)), f("ends", b"x" + bytes(131_072))]],
    "sizes": [[f(f"s{n}", b"x" * n) for n in (0, 1, 511, 512, 513, 131_071, 131_072, 131_073, 262_144)]],
    "same-content": [[f("a", "same" * 999), f("b", "same" * 999)], [f("c", "same" * 999)]],
    "metadata-prefix": [[f("x", "1")], [d(".wh..wh.plnk"), f(".wh..wh.aufs")]],
    "empty-folder-gone-and-back": [[d("x"), f("x/y")], [gone("x")], [d("x")]],
    "old-type": [[Member(name="x", type=tarfile.AREGTYPE, data=b"1")]],
}

# Docker 20.10 refuses them; umoci's tree is the measure.
WITHOUT_ENGINE: dict[str, Layers] = {
    "whiteout-then-new": [[f("x", "1")], [gone("x")], [f("x", "3")]],
    "own-whiteout": [[f("x", "1")], [f("x", "2"), gone("x")]],
    "same-name-twice": [[f("x", "1"), f("x", "22")]],
    "folder-twice": [[d("x", 0o700), f("x/y"), d("x", 0o711)]],
    "file-then-folder": [[f("x", "1"), d("x"), f("x/y", "2")]],
    "folder-then-file": [[d("x"), f("x/y", "2"), f("x", "1")]],
    "file-then-link": [[f("t", "0"), f("x", "1"), link("x", "t")]],
    "hard-before-replaced": [[f("x", "1"), hard("y", "x"), f("x", "22")]],
    "hard-to-lower": [[f("x", "1")], [hard("y", "x")]],
    "hard-to-lower-gone": [[f("x", "1"), f("z")], [hard("y", "x"), gone("x")]],
    "hard-to-lower-replaced-above": [[f("x", "1")], [hard("y", "x")], [f("x", "2")]],
    "hard-to-lower-deep": [[d("p"), f("p/x", "1")], [f("q")], [hard("y", "p/x")]],
    "hard-to-lower-link": [[link("x", "t")], [hard("y", "x")]],
}

# Where the merged tree is not umoci's: a folder that a layer needs and does not name. Engines and Enroot lay the layers over one
# another, so that it is a new folder with mode 755; umoci unpacks all into one.
AS_ENGINES_DO: dict[str, Layers] = {
    "hard-other-mode": [[f("a", "1", 0o600), hard("b", "a", 0o755, mtime=TIME + 9)]],
    "implied-over-folder": [[d("x", 0o700), f("x/a", "1")], [f("x/b", "2")]],
    "implied-over-link": [[d("t"), f("t/a", "1"), link("x", "t")], [f("x/b", "2")]],
    "implied-over-file": [[f("x", "1")], [f("x/b", "2")]],
    "implied-by-whiteout": [[d("x", 0o700), f("x/a", "1"), f("x/b")], [gone("x/a")]],
    "implied-by-opaque": [[d("x", 0o700), f("x/a", "1")], [opaque("x"), f("x/b")]],
}


@dataclass(frozen=True, kw_only=True)
class Alone:
    """A case that is an image of its own."""

    layers: Layers
    config: dict[str, object] = field(default_factory=dict)


ALONE: dict[str, Alone] = {
    "workdir-missing": Alone(layers=[[f("x")]], config={"WorkingDir": "/srv/deep/work"}),
    "workdir-in-tmp": Alone(layers=[[d("tmp", 0o1777)]], config={"WorkingDir": "/tmp/work"}),
    "workdir-through-link": Alone(
        layers=[[d("elsewhere"), link("srv", "/elsewhere")]], config={"WorkingDir": "/srv/work"}
    ),
    "workdir-through-dangling": Alone(layers=[[link("srv", "/else/where")]], config={"WorkingDir": "/srv/work"}),
    "workdir-is-link": Alone(layers=[[d("a"), link("srv", "a")]], config={"WorkingDir": "/srv"}),
    "workdir-in-dev": Alone(layers=[[f("x")]], config={"WorkingDir": "/dev/shm/x"}),
    "workdir-in-proc": Alone(layers=[[f("x")]], config={"WorkingDir": "/proc/work"}),
    "workdir-mode": Alone(layers=[[d("w", 0o2770)]], config={"WorkingDir": "/w"}),
    "volume-missing": Alone(layers=[[f("x")]], config={"Volumes": {"/data": {}, "/with blank": {}}}),
    "etc-rc-linked": Alone(layers=[[d("etc"), f("etc/rc", "mine", 0o755), hard("opt-rc", "etc/rc")]]),
    "etc-environment-linked": Alone(
        layers=[[d("etc"), f("etc/environment", "X=1\n"), hard("etc/zz", "etc/environment"), hard("z", "etc/zz")]]
    ),
    "dev-linked": Alone(layers=[[d("dev"), f("dev/f", "data"), hard("kept", "dev/f"), hard("too", "dev/f")]]),
    "etc-is-link": Alone(layers=[[d("usr"), d("usr/etc"), f("usr/etc/passwd", "x"), link("etc", "usr/etc")]]),
    "etc-mode": Alone(layers=[[d("etc", 0o700), f("etc/x")]]),
    "etc-rc-folder": Alone(layers=[[d("etc"), d("etc/rc"), f("etc/rc/x", "1")]]),
    "etc-hosts-link": Alone(layers=[[d("etc"), f("etc/real", "1"), link("etc/hosts", "real")]]),
    "tmp-is-link": Alone(layers=[[d("var"), d("var/tmp", 0o1777), link("tmp", "var/tmp")]]),
    "run-is-dangling": Alone(layers=[[link("run", "var/run")]]),
    "mnt-is-file": Alone(layers=[[f("mnt", "1")]]),
    "proc-mode": Alone(layers=[[d("proc", 0o555), d("sys", 0o555), d("dev", 0o700)]]),
    "root-entry": Alone(layers=[[d("./", 0o700), f("./x")]]),
    "dockerenv": Alone(layers=[[f(".dockerenv"), d("run"), f("run/.containerenv")]]),
    "empty-layers": Alone(layers=[[], [f("x")], []]),
    "many-layers": Alone(layers=[[d("x"), f(f"x/{i}", str(i))] for i in range(60)]),
}


def tar_of(members: Sequence[Member], prefix: str = "") -> bytes:
    """The members as a PAX tar, each name below `prefix`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as archive:
        for one in members:
            name = prefix + one.name
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.mtime = one.type, one.mode, one.mtime
            member.uid = member.gid = one.owner
            member.linkname = prefix + one.target if one.type == tarfile.LNKTYPE else one.target
            member.devmajor, member.devminor = one.device
            member.pax_headers = {f"SCHILY.xattr.{key}": value for key, value in one.xattrs.items()} | {
                key: prefix + value if key == "GNU.sparse.name" else value for key, value in one.pax.items()
            }
            member.size = len(one.data)
            archive.addfile(member, io.BytesIO(one.data) if one.data else None)
    return out.getvalue()


def batch(cases: dict[str, Layers]) -> list[bytes]:
    """The layers of one image that holds each case below a folder with its name."""
    depth = max(map(len, cases.values()))
    layers = []
    for number in range(depth):
        tars = [
            tar_of([d("."), *layers[number]] if not number else layers[number], f"{name}/")
            for name, layers in sorted(cases.items())
            if number < len(layers)
        ]
        layers.append(b"".join(tar[: _content(tar)] for tar in tars) + bytes(1024))
    return layers


def _content(tar: bytes) -> int:
    with tarfile.open(fileobj=io.BytesIO(tar), errors="surrogateescape") as archive:
        archive.getmembers()
        return archive.offset


def docker_archive(target: Path, layers: Sequence[bytes], config: dict[str, object], tag: str) -> Path:
    """An archive as `docker save` writes it."""
    raw = _config(layers, config)
    files = {f"{hashlib.sha256(raw).hexdigest()}.json": raw}
    files |= {f"{number}/layer.tar": layer for number, layer in enumerate(layers)}
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    files["manifest.json"] = json.dumps([{"Config": next(iter(files)), "RepoTags": [tag], "Layers": names}]).encode()
    with tarfile.open(target, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target


def oci_layout(
    target: Path, layers: Sequence[bytes], config: dict[str, object], *, tag: str = "latest", packed: bool = False
) -> Path:
    """An OCI layout. packed: with gzip."""
    blobs = target / "blobs/sha256"
    blobs.mkdir(parents=True)

    def add(content: bytes, kind: str) -> dict[str, object]:
        sha256 = hashlib.sha256(content).hexdigest()
        (blobs / sha256).write_bytes(content)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{sha256}", "size": len(content)}

    suffix = "+gzip" if packed else ""
    stored = [add(gzip.compress(x, 1, mtime=0) if packed else x, f"layer.v1.tar{suffix}") for x in layers]
    manifest = {"schemaVersion": 2, "config": add(_config(layers, config), "config.v1+json"), "layers": stored}
    found = add(json.dumps(manifest).encode(), "manifest.v1+json")
    found["annotations"] = {"org.opencontainers.image.ref.name": tag}
    (target / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [found]}))
    (target / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return target


def _config(layers: Sequence[bytes], config: dict[str, object]) -> bytes:
    digests = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    rootfs = {"type": "layers", "diff_ids": digests}
    return json.dumps(
        {"architecture": "amd64", "os": "linux", "config": config, "rootfs": rootfs, "history": []}
    ).encode()
