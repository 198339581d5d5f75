"""Pyxis: puts container options on srun only. On sbatch they would run the batch script itself in the container."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kit.runtimes.base import Container
from kit.schema.mount import Mount

# [docker://][USER@]REGISTRY(#|/)NAME. A first part with a dot, a port or 'localhost' is a registry, as in Docker.
_REGISTRY = re.compile(r"^(?P<user>[^@/#]+@)?(?P<registry>localhost(:\d+)?|[^/#@]+[.:][^/#@]*)[/#](?P<rest>.+)$")


def image_uri(image: str) -> str:
    """The value of `--container-image`: a path unchanged, a reference with '#' after its registry.

    Enroot before 4.0 takes `reg.io/name` for a name on Docker Hub (docs/internals/learnt.md#pyxis), so the kit never writes '/'
    there.
    """
    if image.startswith("/"):
        return image
    reference = image.removeprefix("docker://")
    found = _REGISTRY.match(reference)
    if found:
        reference = f"{found['user'] or ''}{found['registry']}#{found['rest']}"
    return f"docker://{reference}"


def mount_option(mount: Mount) -> str:
    """SOURCE:TARGET[:FLAG+FLAG]. The target is always written: in `/d:ro`, 'ro' would be the target."""
    text = f"{mount.source}:{mount.target}"
    return f"{text}:{'+'.join(mount.flags)}" if mount.flags else text


class Pyxis:
    """Adds options to the srun line, where the SPANK plugin reads them."""

    containerized = True
    pulls = True
    by_srun = True

    def wrap(self, srun: Sequence[str], command: Sequence[str], container: Container) -> list[str]:
        """The srun line with Pyxis's options, then the command."""
        choice, mounts = container.options, (*container.mounts, *container.protected())
        options = [
            f"--container-image={image_uri(container.image)}",
            f"--container-mounts={','.join(map(mount_option, mounts))}",
            f"--container-workdir={container.workdir}",
            "--container-mount-home" if choice.mount_home else "--no-container-mount-home",
            "--container-remap-root" if choice.remap_root else "--no-container-remap-root",
            "--container-writable" if choice.writable else "--container-readonly",
            "--container-entrypoint" if choice.entrypoint else "--no-container-entrypoint",
            # Pyxis runs Enroot with slurmd's PATH, but passes BASH_ENV. srun takes the last --export.
            f"--export=ALL,BASH_ENV={container.bin.parent}/lib/fuse_path.sh",
        ]
        if choice.env:
            options.append(f"--container-env={','.join(choice.env)}")
        return [*srun, *options, *command]


runtime = Pyxis()
