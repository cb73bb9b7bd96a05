"""How much the house costs: a round of `pool` against the bare PyTorch loop that takes exactly the same local steps.

The floor has as many single-thread processes as cores, one weight copy and one sum per client, and no federated code.
Rounds of both are interleaved in one run; the ratio of their medians is printed, with the spread.

    python benchmarks/floor.py [A B C] [--repeats 5] [--data-dir DIR]

A  CIFAR-10, cnn2, 100 clients, 10 per round, 5 epochs, batch 50, augmentation, evaluation   bound 1.15
B  MNIST, mlp3, 10 clients, 5 epochs, batch 64, evaluation                                    bound 1.2
C  10,000 clients with 10 samples each, 1,000 per round, mlp, one epoch, evaluation           bound 2
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import os
import platform
import statistics
import time
from multiprocessing.connection import Connection

import torch
import torch.nn.functional as F

from fedskew import evidence, experiment, face
from fedskew.config import RunConfig
from fedskew.data import sources
from fedskew.engines.pool import Pool
from fedskew.work import server
from fedskew.work.loop import Done, rounds
from fedskew.work.site import Site, one_thread
from fedskew.work.store import Store

BOUNDS = {"A": 1.15, "B": 1.2, "C": 2.0}


def job(name: str, data_dir: str | None) -> tuple[RunConfig, experiment.Given]:
    common = {"method": "fedavg", "rounds": 1000, "data_dir": data_dir}
    if name == "A":
        return face.configure(
            **common, dataset="cifar10", augment="fedlmd-cifar10", model="cnn2", partition="dirichlet:0.5",
            clients=100, per_round=10, epochs=5, batch=50,
        ), experiment.Given()  # fmt: skip
    if name == "B":
        return face.configure(
            **common, dataset="mnist", model="mlp3", partition="dirichlet:0.5", clients=10, epochs=5, batch=64
        ), experiment.Given()
    source = sources.load("synthetic", samples=100_000, classes=10, shape=(1, 28, 28))
    return face.configure(
        **common, dataset="synthetic", model="mlp", partition="iid", clients=10_000, per_round=1000, epochs=1, batch=10
    ), experiment.Given(source=source)


class Floor:
    """The bare loop: workers that train plain modules with torch's own SGD."""

    def __init__(self, site: Site, config: RunConfig, spec: object) -> None:
        self.site, self.config, self.spec = site, config, spec
        start = site.net(spec).initial()
        self.names = list(start)
        self.size = sum(t.numel() for t in start.values())
        self.weights = shared(self.size)
        self.weights.copy_(torch.cat([t.flatten() for t in start.values()]))
        cores = os.cpu_count() or 1
        self.sums = [shared(self.size) for _ in range(cores)]
        self.pipes = []
        for number in range(cores):
            near, far = multiprocessing.Pipe()
            context = multiprocessing.get_context("fork")
            context.Process(target=self.work, args=(far, self.sums[number]), daemon=True).start()
            self.pipes.append(near)

    def work(self, pipe: Connection, total: torch.Tensor) -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        site, local = self.site, self.config.local
        model = site.build(self.spec)
        state = model.state_dict(keep_vars=True)
        views = torch.split(self.weights, [t.numel() for t in state.values()])
        totals = torch.split(total, [t.numel() for t in state.values()])
        draws = torch.Generator()
        while True:
            clients, (first, last) = pipe.recv()
            total.zero_()
            for client in clients:
                shard = site.shards.shard(client, site.x)
                model.train()
                with torch.no_grad():
                    for t, view in zip(state.values(), views, strict=True):
                        t.copy_(view.view_as(t))
                sgd = torch.optim.SGD(
                    model.parameters(), local.lr, momentum=local.momentum, weight_decay=local.weight_decay
                )
                for _ in range(local.epochs):
                    for index in torch.randperm(len(shard)).split(local.batch):
                        x = site.view.train(site.x.index_select(0, shard.index[index]), draws)
                        loss = F.cross_entropy(model(x), shard.y[index])
                        sgd.zero_grad()
                        loss.backward()
                        sgd.step()
                with torch.no_grad():
                    for t, view in zip(state.values(), totals, strict=True):
                        view.add_(t.flatten(), alpha=len(shard))
            pipe.send(None)
            pipe.recv()
            model.eval()
            right = 0
            with torch.no_grad():
                for t, view in zip(state.values(), views, strict=True):
                    t.copy_(view.view_as(t))
                for start in range(first, last, site.score_batch):
                    stop = min(start + site.score_batch, last)
                    logits = model(site.view.eval(site.test.x[start:stop]))
                    right += int((logits.argmax(1) == site.test.y[start:stop]).sum())
            pipe.send(right)

    def round(self, cohort: list[int]) -> None:
        samples = self.site.shards.sizes()
        loads: list[list[int]] = [[] for _ in self.pipes]
        for client in sorted(cohort, key=lambda c: -int(samples[c])):
            min(loads, key=lambda load: sum(int(samples[c]) for c in load) if len(cohort) < 100 else len(load)).append(
                client
            )
        cut = torch.linspace(0, len(self.site.test), len(self.pipes) + 1).long().tolist()
        for number, pipe in enumerate(self.pipes):
            pipe.send((loads[number], (cut[number], cut[number + 1])))
        for pipe in self.pipes:
            pipe.recv()
        self.weights.copy_(torch.stack(self.sums).sum(0) / sum(int(samples[c]) for c in cohort))
        for pipe in self.pipes:
            pipe.send(None)
        self.right = sum(pipe.recv() for pipe in self.pipes)


def shared(size: int) -> torch.Tensor:
    return torch.frombuffer(mmap.mmap(-1, size * 4), dtype=torch.float32)


def measure(name: str, repeats: int, data_dir: str | None) -> float:
    config, given = job(name, data_dir)
    with one_thread():
        site, _, spec = experiment.prepare(config, given)
        state = server.begin(spec, site.net(spec).initial())
        bare = Floor(site, config, spec)
        pool = Pool(site, Store())
        going = rounds(site, pool, state)
        times: dict[str, list[float]] = {"floor": [], "pool": []}
        for repeat in range(repeats + 1):  # the first is a warm-up
            before = time.perf_counter()
            event = next(going)
            assert isinstance(event, Done)
            model = server.model_of(site, event.state)
            assert model is not None
            accuracy = pool.score(event.state.spec, model)["accuracy"]
            taken = time.perf_counter() - before
            cohort = [update.client for update in event.gathered.updates]
            before = time.perf_counter()
            bare.round(cohort)
            floor = time.perf_counter() - before
            if repeat:
                times["pool"].append(taken)
                times["floor"].append(floor)
        pool.close()
    median = {side: statistics.median(found) for side, found in times.items()}
    ratio = median["pool"] / median["floor"]
    ratios = [p / f for p, f in zip(times["pool"], times["floor"], strict=True)]
    print(
        f"{name}  floor {median['floor']:7.3f} s  pool {median['pool']:7.3f} s  "
        f"ratio {ratio:.3f} (bound {BOUNDS[name]})  "
        f"single ratios {min(ratios):.3f} to {max(ratios):.3f}  "
        f"accuracy {accuracy:.3f} and {bare.right / len(site.test):.3f}",
        flush=True,
    )
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=["A", "B", "C"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data-dir", default=os.environ.get("FEDSKEW_DATA"))
    asked = parser.parse_args()
    machine = f"{evidence.hardware()['cpu']}, {os.cpu_count()} cores"
    print(f"{machine}, torch {torch.__version__}, python {platform.python_version()}")
    held = [measure(name, asked.repeats, asked.data_dir) <= BOUNDS[name] for name in asked.jobs or list(BOUNDS)]
    raise SystemExit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
