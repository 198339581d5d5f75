"""Serves the policy over HTTP: completions with their log-probabilities, from weights that can be replaced while it runs.

    python inference.py --port 8000 --workers 2

    GET  /health          {"version": 3, "workers": 2, "waiting": 0}; version is null until the first weights are loaded
    POST /generate        {"prompts": [[49, 43, 50, 61]], "count": 16, "max_tokens": 4, "temperature": 1.0, "end": 10}
                          -> {"start": "9f2c", "version": 3, "completions":
                          [[{"tokens": [51, 10], "logprobs": [-0.1, -0.01]}, ...]]};
                          503 while there are no weights
    POST /update_weights  an announcement of broadcast.py -> {"version": 4}; 409 when its weights could not be loaded

POST needs the header `Authorization: Bearer TOKEN`, with the token of RUN_DIR/.token, which only the run's user may read; else 401.

Each worker is a thread with the policy on its own device: a GPU of this node, or the CPU. It takes as many waiting requests as fit
a batch, so that many small requests cost one forward pass per token. All of a batch is sampled with one version.
Each node of the role runs one server. TERM ends it. docs/guides/rl.md describes how the three programs work together.
"""

import argparse
import asyncio
import collections
import copy
import hmac
import os
import signal
import threading
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from aiohttp import web
from broadcast import MISSED, NO_WEIGHTS, Announcement, fetch
from lib import device, model, options, policy
from lib.run_token import read_token

parser = options.parser(__doc__)
parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
parser.add_argument(
    "--port", type=int, default=options.port("inference", "http", 8000), help="KIT_ROLE_INFERENCE_PORT_HTTP"
)
parser.add_argument("--workers", type=int, default=0, help="copies of the policy; 0: one for each GPU, or one")
parser.add_argument("--max-batch", type=int, default=4096, metavar="ROWS", help="completions sampled together at most")
parser.add_argument(
    "--weights-timeout", type=float, default=120, metavar="SECONDS", help="for one transfer of the weights"
)


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """A request that waits for a worker. asked: the values that all requests of a batch must share."""

    prompts: list[list[int]]  # token ids
    asked: dict[str, Any]  # arguments of policy.sample: count, max_tokens, temperature, end
    # Set by a worker's thread. Completions: a list for each prompt, with `count` of them.
    answer: Future[tuple["WeightsVersion", list[list[policy.Completion]]]] = field(default_factory=Future)


class RequestQueue:
    """The requests that no worker has taken yet."""

    def __init__(self) -> None:
        self._requests: collections.deque[CompletionRequest] = collections.deque()
        self._changed = threading.Condition()  # guards the deque: the event loop puts, the workers' threads take

    def __len__(self) -> int:
        return len(self._requests)

    def put(self, request: CompletionRequest) -> None:
        with self._changed:
            self._requests.append(request)
            self._changed.notify()

    def take(self, rows: int) -> list[CompletionRequest]:
        """The next request, and those after it that have the same `asked` and fit into `rows`. Waits for the first."""
        with self._changed:
            self._changed.wait_for(lambda: self._requests)
            taken = [self._requests.popleft()]  # even one larger than `rows`: no worker would take it otherwise
            # Rows of the batch: each prompt is sampled `count` times.
            count = taken[0].asked["count"]
            rows -= len(taken[0].prompts) * count
            # In the order of arrival: a small request does not overtake one that does not fit, so that none waits for ever.
            while self._requests and self._requests[0].asked == taken[0].asked:
                rows -= len(self._requests[0].prompts) * count
                if rows < 0:
                    break
                taken.append(self._requests.popleft())
            return taken


@dataclass(frozen=True, kw_only=True)
class WeightsVersion:
    """Identifies a worker's weights: the trainer's start that they come from, and their version in it."""

    start: str  # drawn by the trainer at each of its starts
    version: int  # training steps that the trainer had made


class PolicyWorker(threading.Thread):
    """A copy of the policy on one device. The lock keeps its weights from changing within a batch."""

    def __init__(self, device: torch.device, waiting: RequestQueue, seed: int, max_batch: int) -> None:
        super().__init__(daemon=True)  # so that a batch under way does not keep the program from ending
        self.device, self._waiting, self._max_batch = device, waiting, max_batch
        # A generator for each worker: torch's global one would be shared by the threads, in an order that timing decides.
        self._generator = torch.Generator(device).manual_seed(seed)
        self._lock = threading.Lock()
        self._net: model.GPT | None = None  # None until the first weights are loaded
        self.weights: WeightsVersion | None = None

    def replace(self, net: model.GPT, weights: WeightsVersion) -> None:
        """Use another policy, from the next batch on."""
        # Waits until the batch under way is sampled.
        with self._lock:
            self._net, self.weights = net, weights

    def run(self) -> None:
        while True:
            requests = self._waiting.take(self._max_batch)
            try:
                self._serve(requests)
            except Exception as error:  # noqa: BLE001 - each request gets it as its answer; the worker continues
                for request in requests:
                    request.answer.set_exception(error)

    def _serve(self, requests: list[CompletionRequest]) -> None:
        # One batch of all requests. policy.sample pads it to (prompts * count, longest prompt + max_tokens).
        prompts = [prompt for request in requests for prompt in request.prompts]
        # For the whole batch, so that one version samples all of it.
        with self._lock:
            weights, net = self.weights, self._net
            if weights is None or net is None:
                raise RuntimeError("asked before the first weights came")
            # One list of `count` completions for each prompt, in the order of the prompts.
            made = iter(policy.sample(net, prompts, **requests[0].asked, generator=self._generator))
        for request in requests:
            request.answer.set_result((weights, [next(made) for _ in request.prompts]))


class InferenceServer:
    """The HTTP side. Heavy work runs on threads, so that /health answers at any time."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._waiting = args, RequestQueue()
        self._authorization = f"Bearer {read_token(args.run_dir)}".encode()
        gpus = torch.cuda.device_count() if device.use_gpu(args.device) else 0
        # Worker n has GPU n modulo their number. More workers than GPUs share them, each with its own copy of the weights.
        devices = [
            torch.device("cuda", n % gpus) if gpus else torch.device("cpu") for n in range(args.workers or gpus or 1)
        ]
        # Servers on different nodes must not draw the same numbers.
        # With equally many workers on each node, all workers have consecutive seeds.
        seed = args.seed * 1_000_003 + int(os.environ.get("NODE_RANK") or 0) * len(devices)
        self._workers = [PolicyWorker(d, self._waiting, seed + n, args.max_batch) for n, d in enumerate(devices)]
        # Two updates at a time would mix their weights, and need memory for both.
        self._updating = asyncio.Lock()
        self._newest: tuple[str, int] | None = None  # start and number of the newest announcement
        self._weights: WeightsVersion | None = None  # what all workers have
        for worker in self._workers:
            worker.start()

    async def health(self, _: web.Request) -> web.Response:
        version = self._weights.version if self._weights else None
        return web.json_response({"version": version, "workers": len(self._workers), "waiting": len(self._waiting)})

    def _require_token(self, request: web.Request) -> None:
        """Before a request's content is read: other users may reach the port, and could replace the weights."""
        given = request.headers.get("Authorization", "").encode(errors="replace")
        if not hmac.compare_digest(given, self._authorization):
            raise web.HTTPUnauthorized(text="not the token of this run, RUN_DIR/.token")

    async def generate(self, request: web.Request) -> web.Response:
        self._require_token(request)
        if self._weights is None:
            return web.json_response({"error": "no weights yet"}, status=NO_WEIGHTS)
        # The weights that answer may be newer than those at the time of the request: the answer names their version.
        asked = await request.json()
        waiting = CompletionRequest(prompts=asked.pop("prompts"), asked=asked)
        self._waiting.put(waiting)
        # A worker thread samples. This coroutine waits without blocking other requests.
        weights, completions = await asyncio.wrap_future(waiting.answer)
        found = [[asdict(completion) for completion in of_prompt] for of_prompt in completions]  # prompts x count
        return web.json_response({**asdict(weights), "completions": found})

    async def update(self, request: web.Request) -> web.Response:
        self._require_token(request)
        news = Announcement.parse(await request.json())
        # Before the lock, so that an update that waits for other servers sees that it is superseded, and ends.
        self._newest = (news.start, news.number)
        async with self._updating:
            # A collective needs all its members, also a server that has these weights already.
            if news.store or self._weights != WeightsVersion(start=news.start, version=news.version):
                try:
                    # Newer weights were announced while this request waited for the lock.
                    if self._superseded(news):
                        raise RuntimeError("newer ones are announced")
                    await asyncio.to_thread(self._update, news)  # seconds, in which /health and /generate are served
                except (RuntimeError, OSError) as error:
                    print(f"warning: weights of version {news.version}: {error}", flush=True)
                    # Not fatal: the old weights stay. The orchestrator asks for new ones where a batch needs them.
                    return web.json_response({"error": str(error)}, status=MISSED)
        return web.json_response({"version": news.version})

    async def give_up(self, _: web.Application) -> None:
        """Release the thread that waits for weights at shutdown. It would keep this process alive until its timeout."""
        self._newest = None

    def _superseded(self, news: Announcement) -> bool:
        return self._newest != (news.start, news.number)

    def _update(self, news: Announcement) -> None:
        weights = WeightsVersion(start=news.start, version=news.version)
        # Its shape comes with the announcement. Its random weights are overwritten below.
        first = policy.built(news.shape).to(self._workers[0].device).eval()
        timeout, superseded = self._args.weights_timeout, partial(self._superseded, news)
        # The workers sample with the old weights during the transfer. It takes seconds for a large model.
        # Of a collective all servers are members, and the trainer is rank 0. A file each server reads by itself.
        first.load_state_dict(fetch(news, first.state_dict(), timeout, superseded))
        # Fetched once for each node, then copied to the other GPUs: that is faster than a second transfer over the network.
        for worker in self._workers:
            worker.replace(copy.deepcopy(first).to(worker.device), weights)
        self._weights = weights  # from here on /health tells this version
        print(f"weights of version {news.version}", flush=True)


def main() -> None:
    """Serve until TERM."""
    args = options.parse(parser)
    # The signal before a time limit is for programs that have something to save.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    server = InferenceServer(args)
    # 1 GiB: a request may hold thousands of prompts. aiohttp refuses more than 1 MiB by default.
    app = web.Application(client_max_size=1 << 30)
    app.add_routes(
        [
            web.get("/health", server.health),
            web.post("/generate", server.generate),
            web.post("/update_weights", server.update),
        ]
    )
    app.on_shutdown.append(server.give_up)
    print(f"listening on {args.host}:{args.port}", flush=True)
    # aiohttp ends at TERM or INT. Requests under way get one second: their rollouts can be sampled elsewhere.
    web.run_app(app, host=args.host, port=args.port, print=None, shutdown_timeout=1)


if __name__ == "__main__":
    main()
