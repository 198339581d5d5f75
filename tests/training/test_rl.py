"""The small RL: inference servers, orchestrator and trainer together on this machine; and the SFT before and after it."""

import asyncio
import importlib.util
import json
import re
import signal
import stat
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

LAUNCHERS = Path(__file__).parents[2] / "launchers"
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("aiohttp") is None, reason="aiohttp is not installed (make training)"),
]
SMALL = ("--layers", 1, "--dim", 32, "--form-steps", 40)


class Run:
    """One run folder and the programs that work in it."""

    def __init__(self, training: Any, name: str, ports: list[int]) -> None:
        self.training, self.name, self.ports = training, name, ports
        self.folder = training.folder / name
        self.servers = [self.server(port) for port in ports]
        self.orchestrator: Any = None

    def server(self, port: int, *options: object) -> Any:
        return self.training.start(
            "rl/inference.py", self.name, "--port", port, "--host", "127.0.0.1", *options, shape="single"
        )

    def orchestrate(self, *options: object) -> Any:
        urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.orchestrator = self.training.start(
            "rl/orchestrator.py", self.name, "--servers", *urls, *options, shape="single"
        )
        return self.orchestrator

    def train(self, *options: object, ranks: int = 1) -> Any:
        return self.training.start(
            "rl/trainer.py", self.name, "--inference-servers", len(self.ports), *SMALL, *options, ranks=ranks
        )

    def output(self, *others: Any) -> str:
        return "".join(one.output() for one in (*self.servers, self.orchestrator, *others) if one)

    def end(self, trainer: Any) -> None:
        """The trainer must end well; the services, which run until TERM, as well."""
        codes = trainer.wait(240)
        assert set(codes) == {0}, self.output(trainer)
        for service in (self.orchestrator, *self.servers):
            for process in service.processes:
                process.terminate()
            assert service.wait(20) == [0], service.output()


@pytest.fixture
def start(training: Any, free_port: Callable[[], int]) -> Iterator[Callable[..., Run]]:
    yield lambda servers=1: Run(training, "rl", [free_port() for _ in range(servers)])


def lib(name: str) -> Any:
    sys.path[:0] = [str(LAUNCHERS)] if str(LAUNCHERS) not in sys.path else []
    return importlib.import_module(f"lib.{name}")


# ---- together ----


def test_reward_rises(start: Callable[..., Run], tools: Any) -> None:
    """A short run, with checkpoints and the files that docs/guides/rl.md names."""
    run = start()
    run.orchestrate("--max-steps", 25, "--eval-every", 10)
    run.end(run.train("--max-steps", 25, "--checkpoint-every", 10))
    (final,) = tools.records(run.folder, "final")
    assert final["reward"] > final["reward_before"] + 0.1, final
    steps = tools.records(run.folder, "step")
    assert [record["step"] for record in steps] == list(range(1, 26))
    assert all(record["behind"] <= 1 for record in steps)
    assert sorted(path.name for path in (run.folder / "checkpoints").glob("step-*")) == [
        "step-00000010",
        "step-00000020",
        "step-00000025",
    ]
    announced = json.loads((run.folder / "broadcast" / "latest.json").read_text())
    assert (announced["version"], announced["store"]) == (25, None)
    assert len(list((run.folder / "broadcast").glob("version-*.pt"))) == 2
    assert [record["step"] for record in tools.records(run.folder / "orchestrator", "eval")][:2] == [0, 10]


@pytest.mark.slow
def test_the_stated_figure(start: Callable[..., Run], tools: Any) -> None:
    """The defaults: what docs/guides/rl.md says of them."""
    run = start()
    run.orchestrate()
    trainer = run.training.start("rl/trainer.py", run.name, ranks=1)
    assert trainer.wait(1500) == [0], run.output(trainer)
    (final,) = tools.records(run.folder, "final")
    assert final["accuracy_before"] < 0.15
    assert final["accuracy"] > 0.6 and final["reward"] > 0.7, final


@pytest.mark.parametrize("copies", [0, 1])
def test_weights_by_collective(copies: int, start: Callable[..., Run], tools: Any) -> None:
    """Two ranks, as copies of the model and as its shards, and two servers in one gloo group for each version."""
    run = start(servers=2)
    run.orchestrate("--max-steps", 3, "--max-async-level", 0)
    run.end(run.train("--max-steps", 3, "--weight-broadcast", "nccl", "--dp-replicate", copies, ranks=2))
    for server in run.servers:
        assert [int(n) for n in re.findall(r"weights of version (\d+)", server.output())] == [0, 1, 2, 3]
    assert [record["behind"] for record in tools.records(run.folder, "step")] == [0, 0, 0]
    assert not list((run.folder / "broadcast").glob("*.pt"))


@pytest.mark.parametrize("broadcast", ["filesystem", "nccl"])
def test_a_server_that_dies_is_taken_back(broadcast: str, start: Callable[..., Run], tools: Any) -> None:
    run = start()
    run.orchestrate("--max-steps", 8)
    trainer = run.train("--max-steps", 8, "--weight-broadcast", broadcast)
    trainer.until_step(3)
    run.servers[0].kill()
    run.servers = [run.server(run.ports[0])]
    run.end(trainer)
    assert [record["step"] for record in tools.records(run.folder, "step")] == list(range(1, 9))
    assert "weights of version 8" in run.servers[0].output()


@pytest.mark.smoke
def test_a_stopped_trainer_goes_on_and_the_others_follow(start: Callable[..., Run], tools: Any) -> None:
    run = start()
    run.orchestrate("--max-steps", 10)
    first = run.train("--max-steps", 10)
    first.until_step(4)
    first.processes[0].send_signal(signal.SIGTERM)
    assert first.wait() == [143]
    saved = json.loads((run.folder / "state" / "stopped.json").read_text())["step"]
    (old,) = (run.folder / "rollouts").iterdir()
    run.end(run.train("--max-steps", 10))
    (resumed,) = tools.records(run.folder, "resumed")
    assert resumed["step"] == saved
    steps = [record["step"] for record in tools.records(run.folder, "step")]
    assert steps == list(range(1, 11))
    assert not old.exists()  # what was sampled for the first start


def test_a_server_that_stays_away_is_named(start: Callable[..., Run]) -> None:
    run = start()
    run.orchestrate("--server-timeout", 3)
    trainer = run.train()
    trainer.until_step(1)
    run.servers[0].kill()
    assert run.orchestrator.wait(60) == [1]
    assert f"inference server http://127.0.0.1:{run.ports[0]}: no " in run.orchestrator.output()
    trainer.kill()


def test_from_sft_to_rl_and_back(start: Callable[..., Run], training: Any, tools: Any) -> None:
    small = ("--layers", 1, "--dim", 32)
    training.run("sft/train.py", "sft", "--max-steps", 60, *small, ranks=2)
    (sft,) = tools.records(training.folder / "sft", "final")
    assert sft["accuracy"] > sft["accuracy_before"] + 0.1

    run = start()
    run.orchestrate("--max-steps", 2)
    run.end(run.train("--max-steps", 2, "--model", training.folder / "sft" / "checkpoints", "--layers", 3))
    (rl,) = tools.records(run.folder, "final")
    assert rl["accuracy_before"] == sft["accuracy"]  # the same weights, tested with the same seed

    training.run("sft/train.py", "after", "--max-steps", 1, "--lr", 0, "--model", run.folder / "checkpoints", ranks=1)
    (after,) = tools.records(training.folder / "after", "final")
    assert after["accuracy"] == rl["accuracy"]


def test_the_server_answers_while_it_has_nothing_to_serve(start: Callable[..., Run], tools: Any) -> None:
    run = start()
    url = f"http://127.0.0.1:{run.ports[0]}"
    run.servers[0].until(lambda: "listening" in run.servers[0].output())
    with urllib.request.urlopen(f"{url}/health") as answer:
        assert json.load(answer) == {"version": None, "workers": 1, "waiting": 0}
    assert post(run, "generate", {}, token(run)) == 503


def token(run: Run) -> str:
    path = run.folder / ".token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return str(path.read_text())


def post(run: Run, what: str, body: dict[str, Any], shown: str | None) -> int:
    """The status of the first server's answer."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {shown}"} if shown else {})
    url = f"http://127.0.0.1:{run.ports[0]}/{what}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.smoke
def test_the_server_takes_weights_and_requests_from_its_run_alone(start: Callable[..., Run]) -> None:
    """Another user who reached the port could put weights of his own into the policy, and sample from it."""
    run = start()
    run.servers[0].until(lambda: "listening" in run.servers[0].output())
    news = {"start": "his", "version": 7, "shape": {}, "number": 1, "path": "/nowhere.pt", "store": None}
    for shown in (None, "wrong", "\xfc" * 64):
        assert [post(run, what, news, shown) for what in ("generate", "update_weights")] == [401, 401]
    assert post(run, "generate", {}, token(run)) == 503


# ---- problems and rewards of the user's own ----

REWARD = """
def ascii(prompt, completion, problem):
    assert prompt.endswith(problem["ends"]), prompt
    return sum(one.isascii() for one in completion) / max(len(completion), 1)


def faulty(prompt, completion, problem):
    return problem["worth"]


def hangs(prompt, completion, problem):
    import re
    re.match("(a+)+b", 60 * "a")  # holds the interpreter's lock, for years
"""


def own(folder: Path, function: str, *, messages: bool) -> tuple[object, ...]:
    """The options of a task with 40 problems, as text or as messages."""
    (folder / "reward.py").write_text(REWARD)
    texts = [f"Say {number} in ASCII: " for number in range(40)]
    problems: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": text}], "ends": "<|turn|>assistant\n"} if messages else
        {"prompt": text, "ends": text}
        for text in texts
    ]  # fmt: skip
    (folder / "problems.jsonl").write_text("".join(json.dumps(one) + "\n" for one in problems))
    words = ("--problems", folder / "problems.jsonl", "--reward", f"{folder / 'reward.py'}:{function}")
    return (*words, "--validation", 0.2, "--seq-len", 64, "--max-tokens", 6)


@pytest.mark.smoke
@pytest.mark.parametrize("messages", [False, True])
def test_problems_are_learned_by_the_users_reward(messages: bool, start: Callable[..., Run], tools: Any) -> None:
    run = start()
    words = own(run.training.folder, "ascii", messages=messages)
    run.orchestrate("--max-steps", 8, "--batch-size", 256, "--rollouts-per-example", 8, *words)
    trainer = run.train("--max-steps", 8, "--lr", 0.01, "--entropy", 0, *words)
    run.end(trainer)
    (final,) = tools.records(run.folder, "final")
    assert final["reward_before"] < 0.6, "bytes that are drawn evenly: half of them are ASCII"
    assert final["reward"] > final["reward_before"] + 0.2, final
    (rollouts,) = [json.loads(path.read_text()) for path in (run.folder / "rollouts").rglob("step-00000008.json")]
    ends = {one["tokens"][-1] for one in rollouts["rollouts"] if len(one["tokens"]) < 6}
    assert ends <= {0xFD if messages else 0xFF}, "the end of the assistant's turn, or of a text"
    # Other problems are other data.
    path = run.training.folder / "problems.jsonl"
    path.write_text(path.read_text().replace("Say 3", "Tell 3"))
    refused = run.train("--max-steps", 9, *words)
    assert refused.wait() == [1]
    assert "--data is sha256:" in refused.output()


def test_a_fault_of_the_users_reward_ends_the_run_with_its_line(start: Callable[..., Run]) -> None:
    run = start()
    words = own(run.training.folder, "faulty", messages=False)
    trainer = run.train("--max-steps", 8, *words, "--test-rollouts", 1)
    assert trainer.wait() == [1]
    folder = re.escape(str(run.training.folder))
    said = rf"{folder}/reward\.py, line 8: KeyError: 'worth'\n  the problem: {folder}/problems\.jsonl, line \d+: {{"
    assert re.search(said, trainer.output()), trainer.output()
    assert "Traceback" not in trainer.output()


def test_a_reward_that_hangs_ends_the_run_at_its_limit(start: Callable[..., Run]) -> None:
    """With file, function, problem and limit; nothing of it is left."""
    run = start()
    folder = run.training.folder
    words = (*own(folder, "hangs", messages=False), "--reward-timeout", 1)
    trainer = run.train("--max-steps", 8, *words, "--test-rollouts", 1)
    assert trainer.wait() == [1]
    late = f"{folder}/reward.py: hangs: no answer within 1 s, the limit (--reward-timeout)\n  the problem: "
    assert re.search(rf"{re.escape(late + str(folder))}/problems\.jsonl, line \d+: {{", trainer.output()), (
        trainer.output()
    )
    assert "Traceback" not in trainer.output()
    assert not processes_with(str(folder / "reward.py"))


@pytest.mark.smoke
def test_the_orchestrator_ends_at_a_reward_that_hangs(tmp_path: Path) -> None:
    """While its other work continues: the function does not hold the program's own lock."""
    sys.path[:0] = [str(LAUNCHERS / "rl"), str(LAUNCHERS)]
    import orchestrator
    from lib import tasks

    words = own(tmp_path, "hangs", messages=False)
    task = tasks.opened(orchestrator.parser.parse_args([*map(str, words), "--reward-timeout", "1"]))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.05)
            ticks += 1

    async def both() -> None:
        beside = asyncio.create_task(tick())
        await orchestrator.add_rewards(task, [{"problem": task.training[0], "tokens": [65]}])
        beside.cancel()

    with pytest.raises(SystemExit, match="hangs: no answer within 1 s") as ended:
        asyncio.run(both())
    number = int(task.training[0]["prompt"].split()[1]) + 1
    assert f"problems.jsonl, line {number}: " in str(ended.value)
    assert ticks > 5


def processes_with(word: str) -> list[str]:
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    return [line.decode() for line in lines if word.encode() in line and b"reward_process" in line]


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("while True: pass", "no answer within 0.5 s"),
        ("__import__('re').match('(a+)+b', 60 * 'a')", "no answer within 0.5 s"),
        ("__import__('os')._exit(3)", "its process ended with exit code 3"),
        ("__import__('sys').exit(0)", "its process ended with exit code 0"),
        ("__import__('os').abort()", "its process ended by signal 6"),
        ("return float('nan')", "returned nan, which is not finite"),
        ("return 'good'", "returned 'good', which is not a number"),
        ("return True", "returned True, which is not a number"),
        ("1/0", "line 2: ZeroDivisionError: division by zero"),
    ],
)
def test_what_a_reward_may_do_instead(body: str, said: str, tmp_path: Path) -> None:
    rewards, faults = lib("rewards"), lib("faults")
    path = tmp_path / "mine.py"
    path.write_text(f"def reward(prompt, completion, problem):\n    {body}\n")
    function = rewards.opened(f"{path}:reward", timeout=0.5)
    with pytest.raises(faults.Refused) as refused:
        function("1+1=", "2", {"answer": "2"})
    assert said in refused.value.message and str(path) in refused.value.message


@pytest.mark.smoke
def test_a_reward_keeps_its_state_and_reads_what_lies_beside_it(tmp_path: Path) -> None:
    """Ten thousand letters, half a surrogate pair, and a file whose reading hangs."""
    rewards, faults = lib("rewards"), lib("faults")
    (tmp_path / "beside.py").write_text("WORTH = 0.25\n")
    path = tmp_path / "mine.py"
    path.write_text(
        "from beside import WORTH\ncalls = []\n"
        "def reward(prompt, completion, problem):\n"
        "    calls.append(problem)\n    print('said')\n    return WORTH * len(calls) + len(prompt)\n"
    )
    function = rewards.opened(f"{path}:reward")
    assert [function(n * "a" + "\udc80", "\x00\n", {"n": [n]}) for n in (1, 1_000_000)] == [2.25, 1_000_001.5]
    path.write_text("import time\ntime.sleep(100)\n")
    with pytest.raises(faults.Refused, match="the file was not read within"):
        rewards.opened(f"{path}:reward", timeout=0.5)
    for wrong, message in (
        ("x = (", "line 1: not Python"),
        ("x = 1 / 0", "ZeroDivisionError"),
        ("", "has no function"),
    ):
        path.write_text(wrong + "\n")
        with pytest.raises(faults.Refused, match=message):
            rewards.opened(f"{path}:reward")


# ---- parts ----


def test_the_samplers_log_probabilities_are_the_trainers() -> None:
    """Lengths differ, temperature is not 1, completions end early: on the same weights every ratio is 1."""
    import torch

    policy, model, arithmetic = lib("policy"), lib("model"), lib("arithmetic")
    torch.manual_seed(3)
    net = model.GPT(model.GPTShape(layers=2, heads=2, dim=16, context=16)).eval()
    with torch.no_grad():
        net.head.weight[arithmetic.END] = net.head.weight.mean(0) + 0.3  # so that some end early
    prompts = [arithmetic.encode(text) for text in ("1+2=", "0+1+2+2=", "2+2=")]
    made = policy.sample(
        net,
        prompts,
        count=20,
        max_tokens=4,
        temperature=0.7,
        end=arithmetic.END,
        generator=torch.Generator().manual_seed(1),
    )
    pairs = [(prompt, one) for prompt, of_one in zip(prompts, made, strict=True) for one in of_one]
    rows = policy.batch([prompt for prompt, _ in pairs], [one.tokens for _, one in pairs], torch.device("cpu"))
    got = policy.logprobs(net(rows.tokens) / 0.7, rows) * rows.mask
    said = rows.spread([one.logprobs for _, one in pairs])
    assert len({len(one.tokens) for _, one in pairs}) > 1
    assert torch.allclose(got, said, atol=1e-5)
    assert all(
        one.tokens.index(arithmetic.END) == len(one.tokens) - 1 for _, one in pairs if arithmetic.END in one.tokens
    )


def test_padding_changes_nothing() -> None:
    import torch

    policy, model, arithmetic = lib("policy"), lib("model"), lib("arithmetic")
    net = model.GPT(model.GPTShape(layers=1, heads=2, dim=16, context=16)).eval()
    short, long = arithmetic.encode("1+2="), arithmetic.encode("0+1+2+2=")
    device = torch.device("cpu")
    alone = policy.batch([short], [[51, 10]], device)
    beside = policy.batch([short, long], [[51, 10], [53, 10]], device)
    one = policy.logprobs(net(alone.tokens), alone)[0, : len(short) + 1]
    same = policy.logprobs(net(beside.tokens), beside)[0, : len(short) + 1]
    assert torch.allclose(one, same, atol=1e-6)
    assert alone.mask.tolist() == [[0, 0, 0, 1, 1]]


def test_rewards_and_the_split() -> None:
    arithmetic = lib("arithmetic")
    training, held_out = arithmetic.problems()
    assert not set(training) & set(held_out)
    assert all(sum(map(int, prompt[:-1].split("+"))) == int(answer) for prompt, answer in training + held_out)
    one = ("1+2=", "3")
    assert [
        arithmetic.reward(one, list(text)) for text in (b"3\n", b"4\n", b"9\n", b"3", b"3\n\n", b"a\n", b"\xb3\n", b"")
    ] == [
        1.0,
        0.4,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
    ]


def test_advantages_compare_within_a_problem() -> None:
    sys.path[:0] = [str(LAUNCHERS / "rl"), str(LAUNCHERS)]
    import orchestrator

    one, other = ["1+2=", "3"], ["0+1=", "1"]
    right, wrong = list(b"3\n"), list(b"9\n")
    found: list[dict[str, Any]] = [{"problem": one, "tokens": right}, {"problem": one, "tokens": wrong}]
    found += [{"problem": other, "tokens": wrong}] * 1 + [{"problem": other, "tokens": wrong.copy()}]
    asyncio.run(orchestrator.add_rewards(lib("tasks").sums(), found))
    orchestrator.add_advantages(found, 2)
    assert [round(rollout["advantage"], 3) for rollout in found] == [1.0, -1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("launcher", "role", "program"),
    [
        ("rl", "trainer", "rl/trainer.py"),
        ("rl", "orchestrator", "rl/orchestrator.py"),
        ("rl", "inference", "rl/inference.py"),
        ("sft", "trainer", "sft/train.py"),
    ],
)
def test_launcher_toml_knows_the_options_of_its_programs(launcher: str, role: str, program: str) -> None:
    """launcher.toml refuses unknown options before anything is submitted; here it cannot fall behind the programs."""
    table = tomllib.loads((LAUNCHERS / launcher / "launcher.toml").read_text())["programs"]["reference"]["roles"][role]
    argv = [sys.executable, str(LAUNCHERS / program), "--help"]
    env = {"PYTHONPATH": str(LAUNCHERS), "COLUMNS": "300"}
    text = subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout
    offered = set(re.findall(r"^  (?:-h, )?--([a-z-]+)", text, flags=re.MULTILINE)) - {"help", "config"}
    named = {name.replace(".", "-").replace("_", "-") for name in table["options"]}
    # What every program's parser has, and some do not use.
    common = set(re.findall(r"--([a-z-]+)", text.split("checkpoint:")[0].split("run:")[1])) if "run:" in text else set()
    assert named <= offered, named - offered
    saving = {f"checkpoint-{name}" for name in ("dir", "every", "keep", "async", "memory-every")}
    assert offered - named <= common | saving


def test_a_config_file_gives_options_and_the_command_line_wins(training: Any, tmp_path: Path) -> None:
    config = tmp_path / "trainer.toml"
    config.write_text('max_steps = 7\nlr = 0.5\nrun_dir = "elsewhere"\n[checkpoint]\nevery = 3\n')
    code = (
        "import sys; from lib import options; made = options.parser(None); made.add_argument('--max-steps', type=int);"
        "made.add_argument('--lr', type=float); print(options.parse(made))"
    )
    env = {"PYTHONPATH": str(LAUNCHERS)}
    argv = [sys.executable, "-c", code, "--config", str(config)]
    done = subprocess.run([*argv, "--lr", "0.1"], env=env, capture_output=True, text=True, check=True)
    for said in ("max_steps=7", "lr=0.1", "checkpoint_every=3", "run_dir=PosixPath('elsewhere')"):
        assert said in done.stdout
    config.write_text("max_stepz = 7\n")
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "not an option of this program: max_stepz" in done.stderr


def test_a_server_that_waits_for_weights_ends_at_once(start: Callable[..., Run], tools: Any) -> None:
    """Of two servers one is not there: the transfer never begins, and TERM does not wait for its time-out."""
    run = start()
    run.orchestrate()
    trainer = run.training.start(
        "rl/trainer.py", run.name, "--inference-servers", 2, "--weight-broadcast", "nccl", *SMALL, ranks=1
    )
    trainer.until((run.folder / "broadcast" / "latest.json").exists)
    run.orchestrator.until(lambda: "1 inference servers" in run.orchestrator.output())
    time.sleep(1)  # so that the server is told
    for process in run.servers[0].processes:
        process.terminate()
    assert run.servers[0].wait(20) == [0]
    trainer.kill()
