"""Pyxis: container options on srun, and nowhere else (on sbatch they would put the batch script into the container)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kit.runtimes.base import Container
from kit.spec.mount import Mount

# [docker://][USER@]REGISTRY(#|/)NAME: a first part with a dot, a port or 'localhost' is a registry, as Docker reads it.
_REGISTRY = re.compile(r"^(?P<user>[^@/#]+@)?(?P<registry>localhost(:\d+)?|[^/#@]+[.:][^/#@]*)[/#](?P<rest>.+)$")


def image_uri(image: str) -> str:
    """An image as `--container-image` takes it: a path as it is, a reference with '#' behind its registry.

    Enroot before 4.0 takes `reg.io/name` for a name on Docker Hub (field-notes 1), so '/' is never written there.
    """
    if image.startswith("/"):
        return image
    reference = image.removeprefix("docker://")
    found = _REGISTRY.match(reference)
    if found:
        reference = f"{found['user'] or ''}{found['registry']}#{found['rest']}"
    return f"docker://{reference}"


def mount_option(mount: Mount) -> str:
    """SOURCE:TARGET[:FLAG+FLAG]; the target is always written, since `/d:ro` would make 'ro' the target."""
    text = f"{mount.source}:{mount.target}"
    return f"{text}:{'+'.join(mount.flags)}" if mount.flags else text


class Pyxis:
    """The SPANK plugin reads its options from the srun line."""

    containerized = True
    pulls = True

    def wrap(self, srun: Sequence[str], command: Sequence[str], container: Container) -> list[str]:
        """See Runtime."""
        choice = container.options
        options = [
            f"--container-image={image_uri(container.image)}",
            f"--container-mounts={','.join(mount_option(m) for m in container.mounts)}",
            f"--container-workdir={container.workdir}",
            "--container-mount-home" if choice.mount_home else "--no-container-mount-home",
            "--container-remap-root" if choice.remap_root else "--no-container-remap-root",
            "--container-writable" if choice.writable else "--container-readonly",
            "--container-entrypoint" if choice.entrypoint else "--no-container-entrypoint",
        ]
        if choice.env:
            options.append(f"--container-env={','.join(choice.env)}")
        return [*srun, *options, *command]


runtime = Pyxis()
