"""A site's memory is on its own disk: by run and turn, for nobody else's eyes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedskew.core import codec
from fedskew.core.errors import UserError
from fedskew.core.types import ClientState
from fedskew.federation.site.memory import TURNS, Memory, secret

RUN = "0123456789abcdef" * 2


def keep(turn: int) -> ClientState:
    return ClientState({}, {}, (turn, {"part": {"t": torch.tensor(turn)}}, {}))


def turns(memory: Memory) -> set[int]:
    return {int(path.stem.removeprefix("turn-")) for path in memory.folder.glob("*.safetensors")}


def test_a_turn_is_found_again_by_another_process(tmp_path: Path) -> None:
    Memory(tmp_path, RUN, 1).save(4, -1, keep(4))
    found = Memory(tmp_path, RUN, 1).load(4)
    assert found.pending is not None and int(found.pending[1]["part"]["t"]) == 4
    assert Memory(tmp_path, RUN, 1).load(-1) == ClientState()


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    memory = Memory(tmp_path, RUN, 1)
    memory.save(4, -1, keep(4))
    codec.save({"not": "a memory"}, memory.folder / "turn-4.safetensors")
    with pytest.raises(UserError, match=r"is not a memory of this site. Restore"):
        memory.load(4)


def test_sites_and_runs_have_memories_of_their_own(tmp_path: Path) -> None:
    Memory(tmp_path, RUN, 1).save(4, -1, keep(4))
    for run, client in ((RUN, 2), (RUN[::-1], 1)):
        with pytest.raises(UserError, match="has no memory of it"):
            Memory(tmp_path, run, client).load(4)


@pytest.mark.parametrize("run", ["../../etc", "", "0" * 31, "0" * 33, "G" * 32])
def test_a_run_id_names_no_other_folder(tmp_path: Path, run: str) -> None:
    with pytest.raises(UserError, match="32 hexadecimal digits"):
        Memory(tmp_path, run, 0)


def test_old_turns_are_forgotten_but_those_a_coordinator_may_go_back_to(tmp_path: Path) -> None:
    memory = Memory(tmp_path, RUN, 0)
    for turn in range(20):
        memory.save(turn, turn - 1, keep(turn))
    assert turns(memory) == {*range(19 - TURNS, 19), 19}


def test_a_site_that_is_always_too_late_keeps_the_turn_that_was_seen(tmp_path: Path) -> None:
    memory = Memory(tmp_path, RUN, 0)
    memory.save(0, -1, keep(0))
    for turn in range(1, 30):
        memory.save(turn, 0, keep(turn))
    assert turns(memory) == {0, 29}


def test_the_secret_is_made_once_and_is_private(tmp_path: Path) -> None:
    first = secret(tmp_path / "memory")
    assert len(first) == 32 and secret(tmp_path / "memory") == first != secret(tmp_path / "other")
    assert (tmp_path / "memory" / "secret").stat().st_mode & 0o777 == 0o600
