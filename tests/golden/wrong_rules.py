"""Jobs that break a rule: of the frameworks, of planning, of the layers of a job, of sweeps and stages. One for each rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kit import config
from kit.config import prime_rl_file
from kit.errors import ConfigError
from kit.frameworks import program_releases, rl, titan_words, torchtitan
from kit.migrate import write_job as write_migrated
from kit.planning.plain_file import plain_script
from kit.planning.plan import plan
from kit.planning.plan_inputs import Site, Snapshot
from kit.record import secret
from kit.schema.checkpoint_and_tracking import Checkpoint
from kit.schema.launcher import Launcher
from kit.schema.rl_and_sft import Rl
from kit.submission import chain
from kit.sweeps.prepare import prepare_sweep
from kit.validation import toml
from kit.workflow.stages import prepare_stages
from tests.support import REPO, make_lock, make_site, write_job

HEAD = 'name = "digits"\nlauncher = "{launcher}"\nimage = "train-cpu"\n'
SIZE = "[resources]\nnodes = {nodes}\ngpus_per_node = {gpus}\n"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What a user writes, and what reads it. text: a job, or a comment that says what is done."""

    text: str
    run: Callable[[Path], object]


def _plan(job: Path, *, overrides: Sequence[str] = (), site: Site | None = None, cluster: str = "local") -> object:
    resolved = config.load_job(job, cluster=cluster, overrides=overrides)
    made = plan(resolved, make_lock(), site or make_site(containers=False))
    if made.warnings:
        raise ConfigError.of(*made.warnings)
    return chain.with_links(made, file=resolved.job_file) if made.job.chain is not None else made


def _job(
    launcher: str,
    text: str,
    *,
    nodes: int = 2,
    gpus: int = 2,
    containers: bool = False,
    files: Mapping[str, str] | None = None,
    words: str = "",
) -> Rule:
    """A job that is planned. files: beside it, by name. words: those after `--`."""
    layers = files or {}
    top, bracket, tables = text.partition("[") if text.startswith("[") or "\n[" in text else (text, "", "")
    size = SIZE.format(nodes=nodes, gpus=gpus) if nodes else ""
    whole = f"{HEAD.format(launcher=launcher)}{top}\n{size}{bracket}{tables}\n"

    def run(folder: Path) -> object:
        job = write_job(folder, whole)
        _write(folder, layers)
        return _plan(
            job,
            overrides=["--", *words.split()],
            site=make_site(containers=containers),
            cluster="mine" if "clusters/mine.toml" in layers else "local",
        )

    figures = f", {nodes} nodes x {gpus} GPUs" if nodes else ""
    figures += f", -- {words}" if words else ""
    return Rule(text=f"# launcher {launcher}{figures}\n{text}", run=run)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / (name if "." in name else f"{name.replace('__', '/')}.toml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _told(text: str, job: str) -> Rule:
    """A job that is too long to be shown. text: what it contains."""
    return Rule(text=text, run=_job("ddp", job).run)


def _all(launcher: str, texts: Iterable[str], *, nodes: int = 2, gpus: int = 2) -> list[Rule]:
    return [_job(launcher, text, nodes=nodes, gpus=gpus) for text in texts]


def _frameworks() -> list[Rule]:
    titan: list[dict[str, dict[str, int]]] = [
        {"parallelism": {"tensor_parallel_degree": 3}},
        {"training": {"global_batch_size": 12}},
        {"parallelism": {"tensor_parallel_degree": 2, "data_parallel_replicate_degree": 2}},
    ]
    return [
        _job("python", 'command = ["./digits"]', nodes=2, gpus=1),
        _job("python", 'script = "train.py"\n[resources]\nnodes = 1\nranks_per_node = 2', nodes=0),
        _job("ddp", "[megatron]\nnum_layers = 2\nhidden_size = 64\nnum_attention_heads = 2"),
        _job("ddp", 'setup = ["ulimit -n 4096", "module load cuda/12.4"]', containers=True),
        *_all("ddp", ('args = ["--batch-size", "30"]', 'args = ["--batch-size", "many"]')),
        _job("ddp", "seed = 1", words="--epoks 3"),
        _job("diloco", "[diloco]\ngroups = 2\nsync_every = 8", words="--sync-every 4"),
        _job("deepspeed", "[deepspeed]\ntrain_batch_size = 32", words="--ds-config=mine.json"),
        *_all("ddp", ('args = ["--epoks", "3"]', 'script = "/kit/run/code/trainn.py"')),
        _job(
            "mine",
            "seed = 1",
            files={
                "launchers/mine/launcher.toml": 'shapes = ["srun"]\nscript = "train.py"\n',
                "launchers/mine/train.py": "import (\n",
            },
        ),
        *_all("fsdp", ('args = ["--replicate", "3"]', 'args = ["--dim", "30"]')),
        *_all(
            "megatron",
            (
                'args = ["--tp", "2", "--pp", "3"]',
                'args = ["--tp", "0"]',
                'args = ["--tp", "2", "--heads", "3"]',
                'args = ["--kv-heads", "3"]',
                'args = ["--cp", "2"]',
                'args = ["--sequence-parallel", "--transformer-engine"]',
            ),
        ),
        *_all(
            "deepspeed",
            (
                'args = ["--batch-size=32"]',
                "[deepspeed]\ntrain_batch_size = 0",
                "[deepspeed]\ntrain_batch_size = 30",
                "[deepspeed]\ntrain_batch_size = 30\ntrain_micro_batch_size_per_gpu = 2\ngradient_accumulation_steps = 4",
                "[deepspeed]\ntrain_batchsize = 32",
                "[deepspeed.zero_optimization]\nstage = 4",
                "[deepspeed.zero_optimization]\nstage = 2\noffload_param = { device = 'cpu' }",
                "[deepspeed.zero_optimization]\nstage = 0\noffload_optimizer = { device = 'cpu' }",
                "[deepspeed]\nfp16 = { enabled = true }\nbf16 = { enabled = true }",
                "[deepspeed.scheduler.params]\nwarmup_num_steps = 'auto'",
                'script = "train.py"\n[deepspeed]\ntrain_batch_size = 30',
                'script = "train.py"\n[deepspeed]\ntrain_batch_size = 30\ntensor_parallel = { autotp_size = 3 }',
            ),
        ),
        *_all(
            "diloco",
            (
                "[diloco]\nreplicas_per_node = 3",
                "[diloco]\nmin_replicas = 1",
                "[diloco]\nmin_replicas = 9",
                "[diloco]\nfirst_group = 2",
                "[diloco]\nfirst_group = 2\ngroups = 3",
                'script = "train.py"\n[diloco]\nacross = true',
            ),
        ),
        _job("diloco", "[diloco]\nnodes_per_replica = 2", nodes=3),
        *map(_megatron, _MEGATRON),
        _megatron("train_iters = 10\n[checkpoint]\nevery = 0"),
        _megatron("train_iters = 10\n[checkpoint]\nevery = 5\nkeep = 2"),
        _megatron("train_iters = 10\nmy_flag = true"),
        _megatron('train_iters = 10\nargs = ["--my-flag"]'),
        _job(
            "megatron-lm",
            'script = "pretrain_gpt.py"\n[megatron]\nnum_layers = 12\nhidden_size = 768\nnum_attention_heads = 12\n'
            "train_iters = 10\nuse_megatron_fsdp = true",
        ),
        _megatron('train_iters = 10\ntokenizer_hf_include_special_tokens = true\n[env]\nPROGRAM_RELEASE = "0.20"'),
        _megatron("train_iters = 10\ntensor_model_parallel_size = 2\n[env]\nCUDA_DEVICE_MAX_CONNECTIONS = '8'"),
        *_all("rl", _RL, nodes=0),
        _job("ray", 'script = "train.py"\nrank_args = { "--rank" = "RANK" }'),
        _job("ray", 'script = "train.py"\n[roles.server]\nnodes = 2\ncommand = ["./serve"]'),
        _job("ray", 'script = "train.py"\n[roles.ray-worker]\nenv = { A = "1" }', nodes=1),
        *_all("sft", _SFT, nodes=0),
        _job("torchtitan", "[diloco]\nmin_replicas = 2"),
        _job("torchtitan", 'shape = "replicas"\n[diloco]\nsync_every = 30'),
        _job("torchtitan", 'args = ["--training.stps", "3"]'),
        _job("torchtitan", 'env.PROGRAM_RELEASE = "0.2.2"\nargs = ["--training.seed", "3"]'),
        _job("torchtitan", '[env]\nPROGRAM_RELEASE = "0.2.5"'),
        _job("rl", '[rl]\nprograms = "prime-rl"\ngpus_per_node = 2\ntrainer = { model = { cp = 3 } }', nodes=0),
        _job(
            "rl",
            '[rl]\nprograms = "prime-rl"\ngpus_per_node = 2\ninference = { deployment = { type = "disaggregated" } }',
            nodes=0,
        ),
        *(Rule(text=f"# TorchTitan's own file, 4 ranks\n{toml(given)}", run=partial(_titan, given)) for given in titan),
        Rule(text="# TorchTitan's own file, 2 groups of 1 rank", run=partial(_titan, {}, ranks=1, count=2)),
        Rule(text="# TorchTitan's own file, v0.2.2\n[fault_tolerance]\nsync_steps = 5", run=_titan_module),
        *(
            Rule(text=f"# kit generate --extra-args '{words}'", run=partial(_titan_words, words))
            for words in _TITAN_WORDS
        ),
        Rule(text='# [rl] programs = "prime-rl"\n[rl.orchestrator]\nbatchsize = 3', run=_prime_rl_option),
        Rule(text='# a file of prime-rl\nproject_dir = "."', run=_prime_rl_file),
    ]


def _titan(given: dict[str, dict[str, int]], _: Path, *, ranks: int = 4, count: int = 1) -> None:
    if faults := [*torchtitan.broken(given, [], ranks=ranks, count=count)]:
        raise ConfigError.of(*faults, file="llama.toml")


_TITAN_WORDS = ("training.steps 5", "training.stepps=5", "training.steps=many")


def _titan_words(words: str, _: Path) -> None:
    known = titan_words.Known(
        names=frozenset({"training.steps"}), switches=frozenset(), kinds={"training.steps": "int"}
    )
    options, overrides = titan_words.split(words.split(), known.switches)
    found = [*titan_words.stray(options), *titan_words.faults(overrides, known, tables=False, file="llama.toml")]
    raise ConfigError.of(*found, file="llama.toml")


def _prime_rl_option(_: Path) -> None:
    programs = config.load_model(REPO / "launchers/rl/launcher.toml", Launcher).programs["prime-rl"]
    table = Rl.model_validate({"programs": "prime-rl", "orchestrator": {"batchsize": 3}})
    raise ConfigError.of(*rl.broken(table, programs, name="rl", gpus=8, checkpoint=Checkpoint()), file="job.toml")


def _prime_rl_file(folder: Path) -> None:
    prime_rl_file.job_of({"job_name": "math", "project_dir": "."}, "rl.toml", project=folder)


def _titan_module(folder: Path) -> None:
    job = config.load_job(write_job(folder, HEAD.format(launcher="torchtitan")), cluster="local")
    assert job.launcher.releases
    given = {"fault_tolerance": {"sync_steps": 5}}
    if faults := [*program_releases.misspelt(job.job, job.launcher.releases, given, release="0.2.2")]:
        raise ConfigError.of(*faults, file="llama.toml")


def _megatron(text: str) -> Rule:
    """A table of Megatron's options, with a shape where the text has none of its own."""
    shape = {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12}
    given = "".join(f"{key} = {value}\n" for key, value in shape.items() if f"{key} =" not in text)
    return _job("megatron-lm", f"[megatron]\n{given}{text}")


_MEGATRON = (
    "train_iters = 10\ntensor_model_parallel_size = 3",
    "train_iters = 10\nexpert_model_parallel_size = 3\nnum_experts = 3",
    "train_iters = 10\nexpert_model_parallel_size = 2\nnum_experts = 2\nexpert_tensor_parallel_size = 4",
    "train_iters = 10\nglobal_batch_size = 6",
    "train_iters = 10\ntensor_model_parallel_size = 4\nnum_attention_heads = 6\nhidden_size = 96",
    "train_iters = 10\nnum_query_groups = 5",
    "train_iters = 10\ntensor_model_parallel_size = 4\nnum_query_groups = 6",
    "train_iters = 10\nhidden_size = 100",
    "train_iters = 10\npipeline_model_parallel_size = 4\nnum_layers = 6",
    "train_iters = 10\ncontext_parallel_size = 2\nseq_length = 1026",
    "train_iters = 10\nmax_position_embeddings = 512",
    "train_iters = 10\nexpert_model_parallel_size = 2",
    "train_iters = 10\nexpert_model_parallel_size = 2\nnum_experts = 3",
    "train_iters = 10\nnum_experts = 4\ntensor_model_parallel_size = 2",
    "train_iters = 10\nbf16 = true\nfp16 = true",
    "train_iters = 10\nlr = 1e-5\nmin_lr = 1e-4",
    "train_iters = 10\nlr = 'fast'\nmin_lr = 1e-4",
    "num_layers = 12",
    "train_iters = 10\ntrain_samples = 100",
    "train_iters = 10\nlr_warmup_fraction = 0.1\nlr_warmup_iters = 5",
    "train_iters = 10\nsave = '/kit/run/checkpoints'",
    "train_iters = 10\noverlap_param_gather = true",
    "train_iters = 10\nmock_data = true\ndata_path = '/data/x'",
    "train_iters = 10\ntokenizer_type = 'HuggingFaceTokenizer'",
    "train_iters = 10\nlr_warmpup_fraction = 0.1",
    "train_iters = 10\nlr = true",
    "train_iters = 10\nswiglu = 'yes'",
)
_SFT = (
    "[sft]\neval = { interval = 10 }",
    "[sft]\nprograms = 'prime-rl'\nevals = { model = 'x' }",
    "[sft]\nprograms = 'prime-rl'\nnum_train_gpus = 1",
)
_RL = (
    "[rl]\nprograms = 'prime-rrl'",
    "[rl]\nnum_train_nodes = 1\nnodes_per_fsdp_group = 2",
    "[rl]\nparallel = { tp = 2 }",
    "[rl]\nparallel = { tp = 3 }",
    "[rl]\nprograms = 'prime-rl'\nparallel = { tp = 3 }",
    "[rl]\nprograms = 'prime-rl'\nparallel = { tp = 2, dp = 8 }",
    "[rl]\nprograms = 'prime-rl'\ngpus_per_node = 0\nparallel = { tp = 2 }",
    "[rl]\ngpus_per_node = 0\nnum_infer_nodes = 2\nparallel = { dp = 3 }",
    "[rl]\nlog_level = 'debug'",
    "[rl]\nprograms = 'prime-rl'\n[checkpoint]\nasync = true",
    "[rl]\ntrainer = { clip_ration = 0.1 }",
    "[rl]\ntrainer = { max_steps = 1 }\norchestrator = { max_steps = 2 }",
    "[rl]\ntrainer = { seq_len = 16 }\norchestrator = { seq_len = 32 }",
    "[rl]\nprefill = { nodes = 2 }",
    "[rl]\nprograms = 'prime-rl'\nprefill = { nodes = 2 }\nnum_infer_nodes = 2",
    "[rl]\nprograms = 'prime-rl'\nprefill = { nodes = 4, replicas = 3 }",
    "[rl]\nprograms = 'prime-rl'\nnum_infer_nodes = 4\nparallel = { replicas = 3 }",
    "[rl]\nprograms = 'prime-rl'\ngpus_per_node = 2\nnum_train_gpus = 2",
    "[rl]\nprograms = 'prime-rl'\nnum_train_gpus = 1\nnum_infer_nodes = 2",
    "[rl]\nprograms = 'prime-rl'\nnum_train_gpus = 1\nprefill = { nodes = 1 }",
    "[rl]\nprograms = 'prime-rl'\ngpus_per_node = 2\ninference = { vllm = { tensor_parallel_size = 2 } }",
    "[rl]\nprograms = 'prime-rl'\ninference = { router = { type = 'llm-d' } }",
    "[rl]\nprograms = 'prime-rl'\n[env]\nPROGRAM_RELEASE = '0.8.0'",
)


_QOS = """default_qos = "small"
[node]
cpus = 8
gpus = 4
[qos.small]
max_nodes = 2
max_gpus_per_node = 2
cpus_per_node = 4
memory = "8G"
time = "01:00:00"
"""
_GPUS = '[node]\ncpus = 8\ngpus = 8\n[container]\nruntime = "bubblewrap"\n'
_ROLE = '[roles.a]\ncommand = ["a"]\n'


def _planning() -> list[Rule]:
    plain = (
        'shape = "replicas"',
        'shape = "srun"\nrendezvous = "c10d"',
        'shape = "torchrun"\nrendezvous = "static"\n[torchrun]\nmax_restarts = 4',
        '[retry]\nwarm = ["torch"]\n[torchrun]\nmax_restarts = 2\ntee = "3"',
        'rendezvous = "c10d"\n[retry]\nwarm = ["torch"]',
        "[retry]\nkeep = true",
        'shape = "srun"\n[retry]\nwarm = ["torch"]\n[step]\nmpi = "pmix"\ngpus_per_task = 1\ngpu_bind = "closest"',
        "[checkpoint]\nmemory_every = 10",
        "[resources]\ngpus_per_node = 5",
        "[resources]\ncpus_per_node = 9",
        "[resources]\nranks_per_node = 9",
        '[resources]\ntime = "00:02:00"\n[slurm]\nlead = 120',
        '[resources]\ntime = "00:02:00"\n[slurm]\nsignal = "USR2@600"',
        '[slurm]\nsignal = "USR2@600"\nlead = 60',
        '[slurm]\nsignal = "TERM"\nlead = 0',
        '[resources]\ngpu_type = "h100"\ngpus_per_node = 0',
        'mounts = [{ source = "/x", target = "/workspace" }]',
        'mounts = [{ source = "{nowhere}/x", target = "/x" }]',
        'mounts = [{ source = "~bob/x", target = "/x" }]',
        'args = ["--seed", "$RANK", "--data=~/data"]',
        '[env]\nDATA = "${SCRATCH}/data"',
    )
    roles = (
        f"{_ROLE}policy = 'service'",
        f"[retry]\nwarm = ['torch']\n{_ROLE}",
        f"[checkpoint]\nmemory_every = 10\n{_ROLE}",
        f"[checkpoint]\nmemory_every = 10\n{_ROLE}policy = 'replica'",
        f"{_ROLE}shares = 'bb'\n[roles.b]\ncommand = ['b']",
        f"{_ROLE}shares = 'b'\n[roles.b]\nshares = 'c'\ncommand = ['b']\n[roles.c]\ncommand = ['c']",
        f"{_ROLE}shares = 'b'\nnodes = 3\n[roles.b]\ncommand = ['b']",
        f"{_ROLE}gpus = [4]",
        f"{_ROLE}args = ['{{b.port.http}}']\n[roles.b]\ncommand = ['b']",
        f"{_ROLE}after = ['b']\n[roles.b]\ncommand = ['b']\nafter = ['a']",
        f"rank_args = {{ --rank = 'RANK' }}\n{_ROLE}",
        f"{_ROLE}nodes = 'rest'\n[roles.b]\ncommand = ['b']\nnodes = 'rest'",
        f"{_ROLE}nodes = 'rest'\n[roles.b]\ncommand = ['b']\n[resources]\nnodes = 1",
        f"{_ROLE}[resources]\nnodes = 2",
        "[roles.a]\nnodes = 1",
        "[roles.a]\ncommand = ['a', '$SCRATCH']",
    )
    small = (
        "[resources]\nnodes = 3",
        "[resources]\nnodes = 2\n[retry]\nspares = 1",
        "[resources]\ngpus_per_node = 3",
        '[resources]\nmemory = "0"\ngpus_per_node = 0\ncpus_per_node = 2',
        '[resources]\ntime = "2:00:00"\ngpus_per_node = 0\ncpus_per_node = 2',
        "[slurm]\nexclusive = true\n[resources]\ngpus_per_node = 0\ncpus_per_node = 2",
    )
    return [
        _told('# command = ["./simulate", a word of 140,000 bytes]', f"command = ['./simulate', '{'x' * 140_000}']"),
        _told(
            "# [env] with 2,000 variables of 1,000 bytes",
            "[env]\n" + "".join(f"V{n} = '{'x' * 1000}'\n" for n in range(2000)),
        ),
        *_all("ddp", plain, nodes=0),
        *_all("roles", roles, nodes=0),
        *(_job("ddp", text, nodes=0, files={"clusters/mine.toml": _QOS}) for text in small),
        _job(
            "ddp",
            '[resources]\nmemory = "9G"',
            nodes=0,
            files={"clusters/mine.toml": '[node]\ncpus = 8\nmemory = "8G"'},
        ),
        _job("ddp", "", nodes=0, files={"clusters/mine.toml": "[node]\ncpus = 8\n[paths]\ncache = '{nowhere}'"}),
        *(
            _job("ddp", '[slurm]\ntemplate = "own.sh"', nodes=0, files={"own.sh": text})
            for text in (
                "#!/bin/bash\n#SBATCH --chdir=/scratch\ntrue\n",
                "#!/bin/bash\n#SBATCH --array=0-3\ntrue\n",
                "#!/bin/bash\n#SBATCH -N 1\n#SBATCH hetjob\ntrue\n",
                "#SBATCH --nodes=1\ntrue\n",
            )
        ),
        _job("ddp", '[slurm]\ntemplate = "x.j2"', nodes=0, files={"x.j2": "#SBATCH --nodes={{ nodez }}\n"}),
        _job("ddp", '[slurm]\ntemplate = "x.j2"', nodes=0, files={"x.j2": "{% if %}\n"}),
        _job("ddp", '[slurm]\ntemplate = "x.j2"', nodes=0, files={"x.j2": "{{ 1 / 0 }}\n"}),
        Rule(
            text="# a changed copy of an older template of the kit, which leaves out lib/workspace.sh",
            run=_without_copy,
        ),
        _job(
            "ddp",
            '[slurm]\ntemplate = "own.sh"',
            nodes=0,
            files={"own.sh": "#!/bin/bash\nsource lib/retry.sh\nretry::wants_requeue 1 && retry::requeue 1\n"},
        ),
        _job("ddp", 'args = ["--batch-size", "4096"]', nodes=1024, gpus=4),
        _job("deepspeed", "[checkpoint]\nmemory_every = 10\n[retry]\nin_allocation = 1", nodes=0),
        _job("srun", 'command = ["python3", "-m", "torch.distributed.run", "--nproc_per_node", "2", "p.py"]'),
        _job("torchrun", 'command = ["bash", "-c", "cd src && torchrun p.py"]'),
        _job("srun", 'command = ["mpirun", "-np", "4", "./simulate"]'),
        _job("python", 'command = ["srun", "./simulate"]', nodes=1),
        _job("roles", '[roles.trainer]\nnodes = 2\ncommand = ["accelerate", "launch", "p.py"]', nodes=0),
        _without(""),
        _without('[container]\nruntime = "enroot"\ncapabilities = ["CAP_SYS_PTRACE"]\n'),
        _without(f'image = "docker://x/y@sha256:{"0" * 64}"\n[container]\nruntime = "enroot"'),
        Rule(text="# an image that was never built", run=lambda folder: _pinned(folder, lock=False)),
        Rule(text="# on nodes with 8 GPUs, an image with torch for CPUs", run=_for_cpus),
        Rule(text="# launcher deepspeed, an image without deepspeed", run=lambda folder: _pinned(folder, lock=True)),
        Rule(
            text='# in a folder with a blank in its name\n[slurm]\noutput = "%j.out"',
            run=lambda folder: _plan(
                write_job(folder / "my jobs", HEAD.format(launcher="ddp") + '[slurm]\noutput = "%j.out"\n')
            ),
        ),
        Rule(
            text="# in a folder with a ':' in its name",
            run=lambda folder: _plan(write_job(folder / "my:jobs", HEAD.format(launcher="ddp"))),
        ),
        Rule(
            text="# runs in a project folder with a blank in its name",
            run=lambda folder: _plan(
                write_job(folder / "my project", HEAD.format(launcher="ddp")),
                site=make_site(run_dir=folder / "my project/runs/digits-1"),
            ),
        ),
        Rule(
            text="# a project folder with a blank in its name",
            run=lambda folder: _plan(
                write_job(folder, HEAD.format(launcher="ddp")), site=make_site(run_dir=Path("/my runs/digits-1"))
            ),
        ),
        _alone("ddp", 'rendezvous = "c10d"\nargs = ["/kit/run/x"]\n[secrets]\nenv = ["HF_TOKEN"]'),
        _alone("deepspeed", ""),
        _alone("roles", "[roles.a]\ncommand = ['a']"),
    ]


def _alone(launcher: str, text: str) -> Rule:
    """A job that `kit render --plain` cannot write."""
    whole = HEAD.format(launcher=launcher) + text + "\n"

    def run(folder: Path) -> object:
        resolved = config.load_job(write_job(folder, whole), cluster="local")
        lock = make_lock()
        lock.packages.pip["deepspeed"] = "0.18.9"
        return plain_script(plan(resolved, lock, make_site()).decisions)

    return Rule(text=f"# kit render --plain\n{whole}", run=run)


def _without_copy(folder: Path) -> object:
    """A run of a workspace, whose batch script records itself and does not copy the job's folder."""
    job = write_job(folder, HEAD.format(launcher="ddp") + '[slurm]\ntemplate = "own.sh"\n')
    _write(folder, {"own.sh": "#!/bin/bash\n#SBATCH --nodes=1\nsource lib/retry.sh\n"})
    site = replace(make_site(), snapshot=Snapshot(folder=Path("/shared/runs/.snapshots-0/x"), tree="x"))
    return plan(config.load_job(job, cluster="local"), make_lock(), site)


def _pinned(folder: Path, *, lock: bool) -> object:
    resolved = config.load_job(write_job(folder, HEAD.format(launcher="deepspeed")), cluster="local")
    return plan(resolved, make_lock() if lock else None, make_site())


def _for_cpus(folder: Path) -> object:
    _write(folder, {"clusters/mine.toml": _GPUS})
    lock = make_lock()
    lock.packages.pip["torch"] = "2.13.0+cpu"
    return plan(config.load_job(write_job(folder, HEAD.format(launcher="ddp")), cluster="mine"), lock, make_site())


def _without(text: str) -> Rule:
    """A job of a launcher that names no image, and what it names itself."""
    whole = 'name = "digits"\nlauncher = "roles"\n' + text + "\n" + _ROLE

    def run(folder: Path) -> object:
        return plan(config.load_job(write_job(folder, whole), cluster="local"), None, make_site())

    return Rule(text=whole, run=run)


def _config() -> list[Rule]:
    """The layers of a job."""

    def loaded(text: str, *, overrides: Sequence[str] = (), cluster: str = "local", **files: str) -> Rule:
        def run(folder: Path) -> object:
            job = write_job(folder, text)
            _write(folder, files)
            return config.load_job(job, cluster=cluster, overrides=overrides)

        at = [*overrides, "--"].index("--")
        said = " ".join(f"--set {one!r}" for one in overrides[:at])
        words = "".join(f" {one}" for one in overrides[at:])
        options = f"# kit submit {said} --cluster {cluster}{words}".replace("  ", " ")
        return Rule(text=f"{options}\n{text}", run=run)

    job = HEAD.format(launcher="ddp")
    tables = "[node]\ncpus = 4\n[qos.normal]\n[qos.high]\n"
    return [
        loaded('name = "digits"\n'),
        loaded("#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n"),
        loaded('name = "digits"\nlauncher = 3\n'),
        loaded('name = "digits"\nlauncher = "dpp"\n'),
        loaded(job, cluster="locl"),
        loaded(job, cluster="zeppelin"),
        loaded(job, overrides=("nodes",)),
        loaded(job, overrides=("seed=1", "seed.x=2")),
        loaded(job, overrides=("env.RANK=0",)),
        loaded(job, overrides=("resources.tim=30",)),
        loaded(job, overrides=("resources.nodes=none",)),
        loaded(f'args = ["--config", "a.yaml", "train"]\n{job}', overrides=("--", "--config", "b.yaml")),
        loaded(f'args = ["--verbose", "a.txt"]\n{job}', overrides=("--", "--verbose")),
        loaded(f'args = ["--warmup", "10"]\n{job}', overrides=("args.--warm=false",)),
        loaded(f'{job}[roles.a]\nargs = ["--lr", "1"]\n[roles.b]\n', overrides=("--", "--lr", "2")),
        loaded(f"{job}[stages.a]\n[stages.b]\n", overrides=("--", "--lr", "2")),
        loaded(f'qos = "high"\n{job}'),
        loaded(f'qos = "hihg"\n{job}', cluster="mine", clusters__mine=tables),
        loaded(job, overrides=("qos=fast",), cluster="mine", clusters__mine=tables),
        loaded(job, cluster="mine", clusters__mine="[node]\ncpus = 4\n[defaults.resources]\ntimee = '1'\n"),
        loaded(job, cluster="mine", clusters__mine="[node]\ncpus = 4\n[parts]\nfolder = 'parts'\n"),
        loaded(f'mounts = ["dta"]\n{job}'),
        loaded(f'mounts = ["data"]\n{job}', cluster="mine", clusters__mine="[node]\ncpus = 4\n"),
        loaded(f'{job}[slurm]\ntemplate = "my.sbatch.j2"\n'),
        loaded(f'extends = "job.toml"\n{job}'),
        loaded(f"extends = 3\n{job}"),
        loaded(
            f'extends = "base-1.toml"\n{job}', **{f"base-{n}": f'extends = "base-{n + 1}.toml"\n' for n in range(1, 60)}
        ),
    ]


def _workflow() -> list[Rule]:
    """Stages, chains, secrets, sweeps."""
    job = HEAD.format(launcher="ddp")

    def stages(text: str) -> Rule:
        return Rule(
            text=text,
            run=lambda folder: prepare_stages(
                config.read_job(write_job(folder, job + text), cluster="local"), containers=False
            ),
        )

    def sweep(text: str, *overrides: str) -> Rule:
        return Rule(
            text=(
                f"# {' '.join(overrides)}\n" if "--" in overrides else "".join(f"# --set {one}\n" for one in overrides)
            )
            + text,
            run=lambda folder: prepare_sweep(
                write_job(folder, job + text), cluster="local", overrides=overrides, containers=False
            ),
        )

    def kept(text: str, **files: str) -> Rule:
        def run(folder: Path) -> object:
            made = config.load_job(write_job(folder, job + text), cluster="local")
            _write(folder, files)
            return secret.gather(made.job, job_dir=folder, job_file=made.job_file, environ={})

        said = "".join(f"# {name}: {given.strip()}\n" for name, given in files.items())
        return Rule(text=said + text, run=run)

    def migrated(text: str) -> Rule:
        def run(folder: Path) -> object:
            script = folder / "train.sbatch"
            script.write_text(f"#!/bin/bash\n{text}\n")
            report = write_migrated.migrate(script, output=None, cluster="local", force=True)
            write_migrated.check(report)
            return report

        return Rule(text=f"# kit migrate train.sbatch\n{text}", run=run)

    return [
        migrated("#SBATCH --nodes=$N --array=0-3\nsrun python train.py --name $(date)\nsbatch next.sh"),
        migrated("#SBATCH --nodes=2 --gpus-per-node=4\nsrun torchrun --nproc_per_node=4 train.py"),
        migrated("#SBATCH --output='my log'\npython train.py"),
        migrated("srun python a.py &\nsrun python b.py <input &\nwait"),
        stages('[stages.train]\n[stages.test]\nafter = ["trane"]'),
        stages('[stages.train]\nafter = ["test"]\n[stages.test]\nafter = ["train"]'),
        stages('[stages.train]\n[stages.test]\nargs = ["{stages.train}"]'),
        _job("ddp", '[chain]\ntimes = 3\n[secrets]\nenv = ["TOKEN"]'),
        _job("ddp", '[chain]\ntimes = 3\n[notify]\non = ["end"]\nto = ["TEAM_SLACK"]\nby = "batch"'),
        kept('[notify]\non = ["end"]\nto = ["TEAM_SLACK"]\nby = "batch"'),
        kept('[secrets]\nenv = ["TOKEN"]'),
        kept('[secrets]\nfile = "keys.toml"\n[env]\nTOKEN = "x"', **{"keys.toml": 'TOKEN = "y"\n'}),
        kept('[secrets]\nfile = "keys.toml"', **{"keys.toml": "TOKEN = 3\n"}),
        kept('[secrets]\nfile = ".env"', **{".env": "TOKEN is secret\n"}),
        sweep("[sweep.grid]\nseed = [1, 2]", "seed=3"),
        sweep('[sweep.grid]\n"args.--lr" = [1, 2]', "--", "--lr", "3"),
        sweep("[sweep.grid]\nseed = [1, 2]\n[chain]\ntimes = 2"),
        sweep("[sweep.grid]\nseed = [1, 2]\n[stages.a]"),
        sweep('[sweep.grid]\nseed = [1, 2]\n[slurm]\noutput = "logs/%A.out"'),
        sweep("[sweep]\nmax_nodes = 1\ngrid.resources.nodes = [1, 2]"),
        sweep('[sweep]\nwhen = ["seed > 9"]\ngrid.seed = [1, 2]'),
        sweep('[sweep]\ngrid.seed = [1, 2]\nset."args.--lr" = "= sed / 10"'),
        sweep("[sweep.grid]\nresources.nodes = [1, 0]"),
    ]


def rules() -> dict[str, list[Rule]]:
    """Broken rules by room."""
    return {"config": _config(), "frameworks": _frameworks(), "planning": _planning(), "workflow": _workflow()}
