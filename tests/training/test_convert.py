"""Checkpoints of real trainings, converted: the same numbers come out, without the framework that wrote them."""

import argparse
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(240)
LAUNCHERS = Path(__file__).parents[2] / "launchers"
PROGRAM = LAUNCHERS / "convert" / "convert.py"
SMALL = ("--layers", 2, "--dim", 64, "--heads", 4, "--context", 64, "--steps", 3)
RUNS = {
    "ddp": ("ddp/train_gpt.py", 2, ()),
    "fsdp": ("fsdp/train.py", 2, ()),
    "megatron-tp2-pp2": ("megatron/train.py", 4, ("--tp", 2, "--pp", 2, "--kv-heads", 2)),
    "megatron-bf16-distributed-optimizer": ("megatron/train.py", 2, ("--precision", "bf16", "--distributed-optimizer")),
}
# Largest difference of two logits that are about 1 in size, by the type of the weights: both sides compute in float32.
CLOSE = 2e-5


def need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed (make training)")


def convert(*args: object, check: bool = True) -> Any:
    """The program's last word on stdout; its exit code and outputs where it may fail. In this process: torch loads slowly."""
    sys.path[:0] = [path for path in (str(PROGRAM.parent), str(LAUNCHERS)) if path not in sys.path]
    import convert as program

    out, err = io.StringIO(), io.StringIO()
    before, handler = sys.argv, signal.getsignal(signal.SIGTERM)
    sys.argv = [str(PROGRAM), *map(str, args)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = program.main()
    finally:
        sys.argv = before
        signal.signal(signal.SIGTERM, handler)
    if not check:
        return subprocess.CompletedProcess([*map(str, args)], code, out.getvalue(), err.getvalue())
    assert code == 0, err.getvalue()
    return json.loads(out.getvalue())


@pytest.fixture(scope="module")
def trained(module_training: Any) -> Callable[[str], Path]:
    """The checkpoint folder of a run of RUNS, trained once."""
    made: dict[str, Path] = {}

    def checkpoint(name: str) -> Path:
        program, ranks, options = RUNS[name]
        need("megatron" if program.startswith("megatron") else "numpy")
        if name not in made:
            run = module_training.run(program, name, *SMALL, *options, ranks=ranks)
            made[name] = run.run_dir / "checkpoints" / "step-00000003"
        return made[name]

    return checkpoint


def copied(checkpoint: Path, to: Path, *, marker: bool = True) -> Path:
    """A copy that a test may damage; without its complete.json and model.json, it is as other programs write theirs."""
    shutil.copytree(checkpoint, to)
    for name in () if marker else ("complete.json", "model.json"):
        (to / name).unlink()
    return to


def source_logits(name: str, checkpoint: Path, tmp_path: Path) -> tuple[Any, Any]:
    """Tokens and logits of the source model, by the code that trained it."""
    import torch

    if name.startswith("megatron"):
        out = tmp_path / "logits.pt"
        kv_heads = 2 if "--kv-heads" in RUNS[name][2] else 4
        script = Path(__file__).with_name("megatron_logits.py")
        env = {**os.environ, "PYTHONPATH": str(LAUNCHERS), "OMP_NUM_THREADS": "1"}
        argv = [sys.executable, str(script), str(checkpoint), str(out), "4", str(kv_heads)]
        subprocess.run(argv, env=env, check=True, capture_output=True)
        got = torch.load(out)
        return got["tokens"], got["logits"]
    import torch.distributed.checkpoint as dcp

    net = gpt()
    if name == "ddp":
        state = torch.load(checkpoint / "state.pt", weights_only=True)
    else:
        state = {"model": net.state_dict()}
        dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    net.load_state_dict(state["model"])
    tokens = torch.randint(256, (3, 64), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        return tokens, net(tokens)


def gpt() -> Any:
    sys.path[:0] = [str(LAUNCHERS)] if str(LAUNCHERS) not in sys.path else []
    from lib import model

    return model.GPT(model.GPTShape(layers=2, heads=4, dim=64, context=64)).eval()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.smoke) if name == "ddp" else name for name in RUNS]
)
@pytest.mark.parametrize("shard_size", [10**9, 60_000], ids=["one-file", "many-files"])
def test_huggingface_logits(name: str, shard_size: int, trained: Any, tmp_path: Path) -> None:
    need("safetensors")
    need("transformers")
    import torch
    from transformers import LlamaForCausalLM

    made = convert(trained(name), tmp_path / "hf", "--to", "huggingface", "--shard-size", shard_size)
    net, loading = LlamaForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True, dtype=torch.float32)
    assert not loading["missing_keys"] and not loading["unexpected_keys"] and not loading["mismatched_keys"]
    assert net.config.num_key_value_heads == (2 if "--kv-heads" in RUNS[name][2] else 4)
    assert ("model.safetensors.index.json" in made["files"]) == (shard_size < 10**9)
    tokens, expected = source_logits(name, trained(name), tmp_path)
    with torch.no_grad():
        logits = net(tokens).logits
    difference = (logits - expected).abs().max().item()
    print(f"{name}: largest difference {difference:.2e}, largest logit {expected.abs().max().item():.3f}")
    assert expected.abs().max() > 0.1
    assert difference < CLOSE


@pytest.mark.parametrize("inside", ["ddp", "fsdp"])
def test_the_shared_parameters_of_diloco(inside: str, training: Any, tmp_path: Path, tools: Any) -> None:
    """As whole tensors and as rows of two ranks: the digest is that of the program's last record."""
    need("torchft")
    import torch

    run = training.run("diloco/train.py", "run", *SMALL, "--inside", inside, "--sync-every", 2)
    made = convert(run.run_dir / "checkpoints", tmp_path / "model.pt", "--to", "pytorch")
    assert (made["model_config"]["heads"], made["model_config"]["step"]) == (4, 3)
    net = gpt()
    net.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True)["model_state_dict"])
    sha = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in net.parameters())).hexdigest()
    assert sha == tools.records(run.run_dir / "replica-0", "final")[0]["sha256"]


def test_sft_needs_no_word_about_its_shape(training: Any, tmp_path: Path) -> None:
    """It wanted --heads, which state.pt has."""
    run = training.run("sft/train.py", "run", "--max-steps", 1, "--test-rollouts", 1, shape="single")
    made = convert(run.run_dir / "checkpoints", tmp_path / "hf", "--to", "huggingface")
    assert made["model_config"]["heads"] == 4


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_pytorch_of_the_gpt_is_the_model(name: str, trained: Any, tmp_path: Path) -> None:
    import torch

    made = convert(trained(name), tmp_path / "model.pt", "--to", "pytorch")
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert loaded["model_config"] == made["model_config"]
    config = loaded["model_config"]
    assert (config["architecture"], config["step"], config["layers"], config["heads"]) == ("kit-gpt", 3, 2, 4)
    net = gpt()
    net.load_state_dict(loaded["model_state_dict"])
    tokens, expected = source_logits(name, trained(name), tmp_path)
    with torch.no_grad():
        assert torch.equal(net(tokens), expected)


@pytest.mark.smoke
def test_pytorch_of_megatron_loads_without_megatron(trained: Any, tmp_path: Path) -> None:
    checkpoint = trained("megatron-tp2-pp2")
    convert(checkpoint.parent, tmp_path / "model.pt", "--to", "pytorch")
    code = (
        "import sys; sys.modules['megatron'] = None\n"
        "import torch; got = torch.load(sys.argv[1], weights_only=True, mmap=True)\n"
        "print({name: list(tensor.shape) for name, tensor in got['model_state_dict'].items()}, got['model_config'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.pt")], capture_output=True, text=True, check=True
    )
    assert "'decoder.layers.1.self_attention.linear_qkv.weight': [128, 64]" in done.stdout
    assert "'kv_heads': 2" in done.stdout


def test_pytorch_holds_what_megatron_stored(trained: Any, tmp_path: Path) -> None:
    """Against torch's own loading of the stacked tensors, bit for bit."""
    import torch
    import torch.distributed.checkpoint as dcp

    checkpoint = trained("megatron-bf16-distributed-optimizer")
    convert(checkpoint, tmp_path / "model.pt", "--to", "pytorch")
    got = torch.load(tmp_path / "model.pt", weights_only=True)["model_state_dict"]
    key = "decoder.layers.mlp.linear_fc1.weight"
    state = {key: torch.empty(2, 512, 64, dtype=torch.bfloat16)}
    dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    for layer in range(2):
        assert torch.equal(got[f"decoder.layers.{layer}.mlp.linear_fc1.weight"], state[key][layer])


def test_any_other_model_goes_to_pytorch_only(tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    state = {
        "model": {"a": {"weight": torch.arange(6.0).view(2, 3)}, "n": torch.tensor(4)},
        "optimizer": {"m": torch.ones(2)},
    }
    dcp.save(state, checkpoint_id=tmp_path / "saved", no_dist=True)
    made = convert(tmp_path / "saved", tmp_path / "model.pt", "--to", "pytorch")
    got = torch.load(tmp_path / "model.pt", weights_only=True)
    assert made["model_config"]["architecture"] == "unknown"
    assert set(got["model_state_dict"]) == {"a.weight", "n"}
    assert torch.equal(got["model_state_dict"]["a.weight"], state["model"]["a"]["weight"])
    assert got["model_state_dict"]["n"] == 4
    need("safetensors")
    refused = convert(tmp_path / "saved", tmp_path / "hf", "--to", "huggingface", check=False)
    assert refused.returncode == 7
    assert "not of the Llama family" in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "saved"]


@pytest.mark.parametrize(
    ("damage", "marker", "said"),
    [
        ("no shard", True, "__1_0.distcp is missing"),
        ("no shard", False, "__1_0.distcp is missing"),
        ("no metadata", True, ".metadata is missing"),
        ("no metadata", False, ".metadata is missing"),
        ("no metadata.json", False, "metadata.json is missing"),
        ("short", True, "bytes of"),
        ("short", False, "bytes of"),
        ("short metadata", False, ".metadata: damaged"),
        ("flipped", True, "differs from what was written"),
    ],
)
def test_incomplete_checkpoints_are_refused(damage: str, marker: bool, said: str, trained: Any, tmp_path: Path) -> None:
    folder = copied(trained("megatron-tp2-pp2"), tmp_path / "saved", marker=marker)
    shard = folder / "__1_0.distcp"
    if damage == "no shard":
        shard.unlink()
    elif damage == "no metadata":
        (folder / ".metadata").unlink()
    elif damage == "no metadata.json":
        (folder / "metadata.json").unlink()
    elif damage == "short":
        os.truncate(shard, shard.stat().st_size - 1)
    elif damage == "short metadata":
        os.truncate(folder / ".metadata", 1000)
    else:
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    done = convert(folder, tmp_path / "model.pt", "--to", "pytorch", check=False)
    assert done.returncode == 7
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_a_pickle_in_a_checkpoint_runs_nothing(trained: Any, tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    folder = copied(trained("megatron-tp2-pp2"), tmp_path / "saved", marker=False)
    (folder / ".metadata").write_bytes(pickle.dumps(Evil()))
    done = convert(folder, tmp_path / "model.pt", "--to", "pytorch", check=False)
    assert done.returncode == 7
    assert not (tmp_path / "ran").exists()


def test_members_of_enumerations_are_understood_as_every_python_pickles_them(tmp_path: Path) -> None:
    """3.11.2, that of Debian 12, pickles one as getattr(class, name), others as class(value)."""
    import pickle

    from torch.distributed.checkpoint.planner import WriteItemType

    class ByName:
        def __reduce__(self) -> Any:
            return getattr, (WriteItemType, "SHARD")

    class Reaching:
        def __reduce__(self) -> Any:
            return getattr, (Path, "home")

    (tmp_path / "pickle").write_bytes(pickle.dumps([ByName(), WriteItemType.SHARD, Reaching()]))
    sys.path[:0] = [str(PROGRAM.parent)]
    import confined

    by_name, by_value, reached = confined.metadata(tmp_path / "pickle")
    assert (by_name, by_value) == (WriteItemType.SHARD, WriteItemType.SHARD)
    assert isinstance(reached, confined.StandIn)


@pytest.mark.smoke
def test_a_pickle_changes_no_class(tmp_path: Path) -> None:
    """BUILD with (None, {name: value}) sets attributes of whatever stands there, a class too."""
    import pickle

    from torch.distributed.checkpoint.metadata import Metadata

    sys.path[:0] = [str(PROGRAM.parent)]
    import confined

    before = dict(vars(Metadata))
    for name in (b"planted", b"__doc__"):
        change = b"N}\x8c" + bytes([len(name)]) + name + b"K\x01s\x86b"
        (tmp_path / "pickle").write_bytes(b"\x80\x04ctorch.distributed.checkpoint.metadata\nMetadata\n" + change + b".")
        with pytest.raises(pickle.UnpicklingError, match=rf"it sets Metadata\.{name.decode()}"):
            confined.metadata(tmp_path / "pickle")
        assert dict(vars(Metadata)) == before


def test_the_arguments_of_megatron_lm_are_read(trained: Any, tmp_path: Path) -> None:
    """common.pt of Megatron-LM holds its arguments, with objects of classes that only it has."""
    import torch

    folder = copied(trained("megatron-tp2-pp2"), tmp_path / "saved", marker=False)
    said = argparse.Namespace(
        num_attention_heads=4, max_position_embeddings=64, norm_epsilon=1e-6, rotary_base=500000, backend=_Enumeration()
    )
    torch.save({"args": said, "iteration": 12}, folder / "common.pt")
    config = convert(folder, tmp_path / "model.pt", "--to", "pytorch")["model_config"]
    assert (config["step"], config["heads"], config["kv_heads"], config["context"]) == (12, 4, 2, 64)
    assert (config["norm_eps"], config["rope_base"]) == (1e-6, 500000)
    torch.save({"args": argparse.Namespace(**vars(said), normalization="LayerNorm")}, folder / "common.pt")
    need("safetensors")
    refused = convert(folder, tmp_path / "hf", "--to", "huggingface", check=False)
    assert refused.returncode == 7
    assert "normalization is 'LayerNorm'" in refused.stderr


class _Enumeration:
    """Stands for a class that the converter cannot import."""


@pytest.mark.parametrize("name", RUNS)
def test_a_checkpoint_of_the_kit_tells_its_shape(name: str, trained: Any, tmp_path: Path) -> None:
    config = convert(trained(name), tmp_path / "model.pt", "--to", "pytorch")["model_config"]
    assert config == json.loads((trained(name) / "model.json").read_text()) | {"step": 3}


def test_a_damaged_state_pt_is_refused(trained: Any, tmp_path: Path) -> None:
    folder = copied(trained("ddp"), tmp_path / "saved", marker=False)
    os.truncate(folder / "state.pt", 1000)
    refused = convert(folder, tmp_path / "model.pt", "--to", "pytorch", check=False)
    assert refused.returncode == 7
    assert "state.pt: not a checkpoint of launchers/ddp" in refused.stderr


def test_a_damaged_model_json_is_refused(trained: Any, tmp_path: Path) -> None:
    folder = copied(trained("fsdp"), tmp_path / "saved", marker=False)
    (folder / "model.json").write_text('{"heads": ')
    refused = convert(folder, tmp_path / "model.pt", "--to", "pytorch", check=False)
    assert refused.returncode == 7
    assert "model.json: damaged" in refused.stderr


def test_heads_come_from_the_option_the_checkpoint_or_nowhere(trained: Any, tmp_path: Path) -> None:
    need("safetensors")
    made = convert(trained("megatron-tp2-pp2"), tmp_path / "told", "--to", "huggingface")
    assert (made["model_config"]["heads"], made["model_config"]["context"]) == (4, 64)
    checkpoint = copied(trained("megatron-tp2-pp2"), tmp_path / "saved", marker=False)
    unknown = convert(checkpoint, tmp_path / "hf", "--to", "huggingface", check=False)
    assert unknown.returncode == 7
    assert "--heads" in unknown.stderr
    wrong = convert(checkpoint, tmp_path / "hf", "--to", "huggingface", "--heads", 5, check=False)
    assert wrong.returncode == 7
    assert "5 heads do not fit" in wrong.stderr
    given = convert(checkpoint, tmp_path / "hf", "--to", "huggingface", "--heads", 4)
    assert (given["model_config"]["heads"], given["model_config"]["context"]) == (4, None)


def test_an_old_target_is_kept_until_the_new_one_is_whole(trained: Any, tmp_path: Path) -> None:
    target = tmp_path / "model.pt"
    target.write_text("mine")
    refused = convert(trained("fsdp"), target, "--to", "pytorch", check=False)
    assert refused.returncode == 7
    assert "--force" in refused.stderr
    damaged = copied(trained("fsdp"), tmp_path / "saved")
    (damaged / "__0_0.distcp").unlink()
    assert convert(damaged, target, "--to", "pytorch", "--force", check=False).returncode == 7
    assert target.read_text() == "mine"
    convert(trained("fsdp"), target, "--to", "pytorch", "--force")
    assert target.read_bytes()[:2] == b"PK"
    precious = tmp_path / "precious"
    precious.mkdir()
    assert convert(trained("fsdp"), precious, "--to", "pytorch", "--force", check=False).returncode == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "precious", "saved"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_conversion_leaves_no_half_target(number: int, trained: Any, tmp_path: Path) -> None:
    target = tmp_path / "model.pt"
    program = subprocess.Popen(
        [sys.executable, "-c", _SLOW, str(PROGRAM), str(trained("fsdp")), str(target), "--to", "pytorch"],
        env={**os.environ, "PYTHONPATH": f"{LAUNCHERS}:{PROGRAM.parent}"},
        stderr=subprocess.DEVNULL,
    )
    work = tmp_path / ".model.pt.converting"
    while not (work / "new").exists():
        assert program.poll() is None
        time.sleep(0.02)
    busy = convert(trained("fsdp"), target, "--to", "pytorch", check=False)
    assert busy.returncode == 7
    assert "another conversion" in busy.stderr
    program.send_signal(number)
    program.wait(20)
    assert not target.exists()
    assert work.exists() == (number == signal.SIGKILL)
    convert(trained("fsdp"), target, "--to", "pytorch")
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


# The program, with reads that take their time.
_SLOW = """
import runpy, sys, time, source
read = source.CheckpointSource.read
source.CheckpointSource.read = lambda self, piece: (time.sleep(1), read(self, piece))[1]
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_conversion_is_the_same_bytes_each_time(trained: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        convert(trained("fsdp"), tmp_path / name / "model.pt", "--to", "pytorch")
    assert (tmp_path / "a/model.pt").read_bytes() == (tmp_path / "b/model.pt").read_bytes()


def test_the_command_line(trained: Any, tmp_path: Path) -> None:
    """`kit convert-checkpoint --no-container`: the kit in its own Python, the program in this one."""
    repo = LAUNCHERS.parent
    candidates = [Path(sys.executable), repo / ".venv/bin/python"]
    has_kit = ["-c", "import kit.checkpoints.convert, kit.cli.checkpoints"]
    for python in candidates:
        if (
            python.exists()
            and subprocess.run([python, *has_kit], cwd=repo, check=False, capture_output=True).returncode == 0
        ):
            break
    else:
        pytest.skip("the kit is not installed (make setup)")
    argv = [str(python), "-m", "kit", "convert-checkpoint", str(trained("fsdp")), str(tmp_path / "model.pt")]
    argv += ["--to", "pytorch", "--no-container", "--python", sys.executable, "--heads", "4", "--json"]
    done = subprocess.run(argv, cwd=repo, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model_config"]["heads"] == 4
    again = subprocess.run(argv, cwd=repo, check=False, capture_output=True, text=True)
    assert (again.returncode, again.stdout) == (7, "")
