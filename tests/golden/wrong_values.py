"""Wrong values, by the kind of TOML file: a file that is right, and what is put into it. A text that begins with `{` is JSON."""

from __future__ import annotations

HEX = "0" * 64
JOB = 'name = "digits"\nlauncher = "ddp"\n'
LOCK = f"""schema = 1
name = "train-cpu"
sha256 = "{HEX}"
size = 1
source = "build"
inputs = "{HEX}"

[base]
kind = "bootstrap"
reference = "bookworm"
digest = "sha256:{HEX}"

[squash]

[config]

[tools]
kit = "0"
mksquashfs = "4"

[packages]
"""

VALUES: dict[str, tuple[str, tuple[str, ...]]] = {
    "job": (
        JOB,
        (
            'name = "Bad Name"',
            "nodes = 2",
            'partition = "gpu"',
            'mem = "64G"',
            'imge = "train-cpu"',
            "colour = 3",
            "resources = 3",
            'launcher = ["ddp"]',
            '[resources]\nmounts = ["data"]',
            "[resources]\nnodez = 2",
            "[resources]\nnodes = 0",
            '[resources]\nnodes = "two"',
            "[resources]\nnodes = 1.5",
            '[resources]\ntime = "1d"',
            '[resources]\ntime = "90min"',
            '[resources]\ntime = "soon"',
            "[resources]\ntime = 30",
            "[resources]\ntime = 01:30:00",
            '[resources]\nmemory = "64gb"',
            '[resources]\nmemory = "lots"',
            'args = "--lr 1"',
            "args = [1]",
            '{"args": ["a\\u0000b"]}',
            '{"args": ["\\ud800"]}',
            'image = "nvcr.io/nvidia/pytorch:24.05-py3"',
            'image = "pytorch/pytorch:latest"',
            'image = "docker://ubuntu:24.04"',
            'image = "./images/train.sqsh"',
            "image = 3",
            'image = { stage = "node" }',
            'image = { name = "train-cpu", stage = "nodes" }',
            'image = { name = "train-cpu", stage = "node", cap_gb = 0 }',
            'shape = "torchrn"',
            'shape = "mpi"',
            'rank_args = { rank = "RANK" }',
            'rank_args = { --rank = "RNK" }',
            'script = "' + "x" * 140_000 + '"',
            'workdir = "data"',
            'mount_set = "Site A"',
            'mounts = [{ source = "/a,b", target = "/data" }]',
            'mounts = [{ source = "/a\\nb", target = "/data" }]',
            'mounts = [{ source = "$SCRATCH/data", target = "/data" }]',
            'mounts = [{ source = "/data", target = "data" }]',
            'mounts = [{ source = "/data", target = "/a/../b" }]',
            'mounts = [{ source = "/data", target = "/" }]',
            'mounts = [{ source = "/data" }]',
            'mounts = [{ source = "/data", target = "/data", flags = ["ro", "rw"] }]',
            'mounts = [{ source = "/data", target = "/data", flags = ["readonly"] }]',
            'mounts = [{ source = "/a", target = "/data" }, { source = "/b", target = "/data" }]',
            "seed = -1",
            "seed = 4294967296",
            'debug = "maybe"',
            'extends = "base.toml"',
            '[env]\nRANK = "0"',
            '[env]\nKIT_SEED = "0"',
            '[env]\nBASH_ENV = "x"',
            '[env]\n"MY-NAME" = "x"',
            "[env]\nX = 3",
            '[env]\nGLOO_SOCKET_IFNAME = "^docker0"',
            '[slurm]\npartition = "gpu queue"',
            '[slurm]\npartitio = "gpu"',
            '[slurm]\noutput = "my logs/%j.out"',
            '[slurm]\noutput = "%q-%j.out"',
            '[slurm]\noutput = "%j/batch.out"',
            '[slurm]\noutput = "logs/"',
            '[slurm]\noutput = "batch.out"',
            '[slurm]\nextra = ["--nice 100"]',
            '[slurm]\nextra = ["nice=100"]',
            '[slurm]\nextra = ["--time=1-0"]',
            '[slurm]\nextra = ["--signal=B:USR1@300"]',
            '[slurm]\nextra = ["--exclusive"]',
            '[slurm]\nextra = ["--container-image=x"]',
            '[slurm]\nextra = ["--array=0-9"]',
            '[container]\nruntime = "docker"',
            '[monitor]\nselect = "xyz"',
            '[monitor]\noptions = "X"',
            '[monitor]\nquery = ["gpu util"]',
            "[retry]\nexit_codes = [1]",
            "[preflight]\nclock_skew_s = 0",
            '[checkpoint]\ndir = "ckpt"',
            "[checkpoint]\nasync = 3",
            '[profile]\nsteps = "10:12"',
            "[chain]",
            "[chain]\ntimes = 2000",
            "[megatron]\nnum_layers = 2\nhidden_size = 64\nnum_attention_heads = 2\nfoo = { a = 1 }",
            "[megatron]\nnum_layers = 2",
            "[diloco]\nreplicas_per_node = 2\nnodes_per_replica = 2",
            "[diloco]\nsync_every = 9\nfragments = 2",
            "[diloco]\nsync_every = 10\nfragments = 2\noverlap = 5",
            "[diloco]\nbits = 16",
            "[diloco]\nalpha = 1.0",
            '[stages.b]\nafter = ["a:maybe"]',
            '[roles.Server]\ncommand = ["serve"]',
            '[roles.kit-server]\ncommand = ["serve"]',
            '[roles.self]\ncommand = ["serve"]',
            "[roles.server]\ncommand = []",
            '[roles.server]\ncommand = "python3 serve.py"',
            '[roles.server]\nnodes = "all"',
            '[roles.server]\nnodes = "rest"\nshares = "trainer"',
            '[roles.server]\nscript = "a.py"\ncommand = ["b"]',
            '[roles.server]\nports = ["HTTP"]',
            '[roles.server]\nports = ["http"]\nready = { tcp = "web" }',
            '[roles.server]\nready = { http = "web" }',
            "[roles.server]\nready = { timeout_s = 9 }",
            '[roles.server]\nports = ["http"]\nready = { http = "http", path = "health" }',
            '[roles.server]\nready = { file = "-x" }',
            "[sweep]",
            "[sweep]\ngrid = { seed = [] }",
            '[sweep]\ngrid = { "lr rate" = [1] }',
            "[sweep]\ngrid = { seed = [1] }\nset = { seed = 2 }",
            "[sweep]\nzip = { seed = [1, 2], debug = [true] }",
            '[sweep]\ngrid = { seed = [1] }\nmetric = "test loss"',
            "[sweep.random]\ncount = 2\nkeys = {}",
            "[sweep.random]\ncount = 2\nkeys = { seed = {} }",
            "[sweep.random]\ncount = 2\nkeys = { seed = { uniform = [0, 1], choice = [1] } }",
            "[sweep.random]\ncount = 2\nkeys = { seed = { uniform = [1] } }",
            "[sweep.random]\ncount = 2\nkeys = { seed = { uniform = [1, 2, 3] } }",
            "[sweep.random]\ncount = 2\nkeys = { seed = { uniform = [2, 1] } }",
            "[sweep.random]\ncount = 2\nkeys = { seed = { log_uniform = [0, 1] } }",
            "[sweep.random]\ncount = 2\nkeys = { seed = { choice = [1], integer = true } }",
        ),
    ),
    "cluster": (
        "[node]\ncpus = 8\n",
        (
            "[node]\ncpus = 0",
            "[node]\ngpus = -1",
            '[node]\ngres = "gpu:h100"',
            'default_qos = "normal"',
            'default_qos = "hihg"\n[qos.high]',
            '[qos.normal]\nqos = "a b"',
            "[qos.normal]\nqos = true",
            '[network]\nGLOO_SOCKET_IFNAME = "=eth0"',
            '[store]\nsigners = ["alice"]',
        ),
    ),
    "image": (
        '[base]\nreference = "debian:bookworm"\n',
        (
            '[base]\nbootstrap = { suite = "bookworm" }',
            '{"base": {}}',
            '{"base": {"bootstrap": {"suite": "Book Worm"}}}',
            '{"base": {"bootstrap": {"suite": "bookworm", "packages": ["Python 3"]}}}',
            '[python]\nversion = "3.11.2"',
            '[python]\nplatforms = ["manylinux-2.28"]',
            '[build]\nplatform = "amd64"',
            '[build]\nnetwork = "bridge"',
            '[squash]\ncompressor = "lz4"\nlevel = 3',
            '[squash]\ncompressor = "gzip"\nlevel = 12',
            '[squash]\nmemory = "64 mb"',
        ),
    ),
    "lock": (LOCK, ('sha256 = "c0ffee"', f'[base]\ndigest = "{HEX}"', "schema = 2")),
    "launcher": (
        'shapes = ["torchrun"]\n',
        ("shapes = []", 'script = "-train.py"', 'framework = "nemo"', 'scrpt = "train.py"'),
    ),
    "mounts": ("", ('[data]\nsorce = "/data"\ntarget = "/data"', '["My Data"]\nsource = "/data"\ntarget = "/data"')),
    "table": (
        'by = ["model"]\n\n[values]\na = 1\n',
        ('by = ["Model Size"]', "by = []", "[values]\na = [1]", "[values.b]\nc = [1]"),
    ),
}
