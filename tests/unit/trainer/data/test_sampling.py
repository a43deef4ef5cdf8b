"""The order of the rows, and streams: what the exact resume rests on."""

from __future__ import annotations

import random

import pytest
import torch
from datasets import Dataset
from torch.utils.data import IterableDataset

from params import CheckpointError, DataError
from params.schema import Launch
from trainer.data.datasets import SeededCollator, SeededDataset
from trainer.data.order import BatchShard, EpochOrder, MicroBatchSampler
from trainer.data.randomness import seeded
from trainer.data.streaming import SeededStream, ShuffledWindows
from trainer.loop.batch import split_batch


def order(rows=50, *, seed=3, batch=8, epoch=0, lengths=None):
    made = EpochOrder(rows, seed=seed, global_batch_size=batch, lengths=lengths)
    found = made.rows(epoch).tolist()
    assert len(found) == made.batches * batch
    return found


def dealt(processes, *, rows=50, batch=8, most=2, at=(0, 0)):
    """The rows of each optimizer step from a position to the end of its epoch, over all processes."""
    micro_batch, accumulation = split_batch(batch, Launch(num_processes=processes, micro_batch_size=most))
    steps = []
    for process in range(processes):
        made = EpochOrder(rows, seed=3, global_batch_size=batch)
        sampler = MicroBatchSampler(made, BatchShard(micro_batch, accumulation, processes, process))
        sampler.load_state_dict({"epoch": at[0], "batch": at[1], "global_batch_size": batch})
        batches = list(sampler)
        assert len(batches) == len(sampler)
        assert batches[: sampler.micro_batches_done] == [[]] * sampler.micro_batches_done
        rest = batches[sampler.micro_batches_done :]
        assert all(len(keys) == micro_batch for keys in rest)
        steps.append([rest[i : i + accumulation] for i in range(0, len(rest), accumulation)])
    return [
        [t for micro in zip(*step, strict=True) for keys in micro for t in keys] for step in zip(*steps, strict=True)
    ]


def test_an_epoch_is_whole_global_batches_without_a_row_twice():
    assert len(order()) == 48
    assert len(set(order())) == 48
    assert len(order(rows=48)) == 48
    assert order(rows=7) == []


def test_the_order_follows_from_seed_and_epoch_alone():
    assert order() == order()
    assert order(epoch=1) != order(epoch=0)
    assert order(seed=4) != order(seed=3)
    assert order(epoch=2, seed=3) != order(epoch=3, seed=2)
    left_out = [set(range(50)) - set(order(epoch=e)) for e in range(4)]
    assert len(set(map(frozenset, left_out))) > 1, "other rows are left over in each epoch"


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_every_number_of_processes_makes_the_same_steps(processes):
    expected = [[(2, row) for row in order(epoch=2)[i : i + 8]] for i in range(0, 48, 8)]
    assert dealt(processes, at=(2, 0)) == expected
    assert dealt(processes, at=(2, 4)) == expected[4:]


def test_a_position_moves_on_over_the_end_of_an_epoch():
    sampler = MicroBatchSampler(EpochOrder(50, seed=3, global_batch_size=8), BatchShard(4, 2, 1, 0))
    for _ in range(7):
        sampler.advance()
    assert sampler.state_dict() == {"epoch": 1, "batch": 1, "global_batch_size": 8}
    assert sampler.micro_batches_done == 2


def test_a_position_of_another_global_batch_means_other_rows():
    sampler = MicroBatchSampler(EpochOrder(50, seed=3, global_batch_size=8), BatchShard(4, 2, 1, 0))
    with pytest.raises(CheckpointError, match="written with a global batch of 16 sequences, this run has 8"):
        sampler.load_state_dict({"epoch": 0, "batch": 1, "global_batch_size": 16})


def test_grouping_by_length_keeps_batches_alike_and_the_epoch_whole():
    lengths = [i * 7919 % 100 for i in range(1000)]
    found = order(1000, lengths=lengths)
    assert sorted(found) == list(range(1000))
    spreads = [max(lengths[i] for i in b) - min(lengths[i] for i in b) for b in zip(*[iter(found)] * 8, strict=True)]
    assert max(spreads) < 10
    firsts = [lengths[i] for i in found[::8]]
    assert firsts != sorted(firsts, reverse=True), "but the batches come in random order"
    assert found == order(1000, lengths=lengths)
    assert found != order(1000, lengths=lengths, epoch=1)


def test_a_stream_has_no_length_and_no_end():
    sampler = MicroBatchSampler(None, BatchShard(2, 3, 2, 1))
    with pytest.raises(TypeError, match="no length"):
        len(sampler)
    batches = iter(sampler)
    assert [next(batches) for _ in range(2)] == [[(0, 2), (0, 3)], [(0, 6), (0, 7)]]


class Noisy:
    """Data with random augmentation."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return {"row_id": 100 + index, "noise": (random.random(), float(torch.rand(())))}


def test_augmentation_is_a_function_of_epoch_and_row():
    examples = SeededDataset(Noisy(), seed=3)
    together = dict(examples.__getitems__([(0, 4), (0, 5)]))
    alone = dict(examples.__getitems__([(0, 5)]))
    assert together[0, 5] == alone[0, 5]
    assert dict(examples.__getitems__([(1, 5)]))[1, 5] != alone[0, 5]
    assert dict(SeededDataset(Noisy(), seed=4).__getitems__([(0, 5)])) != alone


def test_a_collators_randomness_follows_from_its_rows():
    collate = SeededCollator(lambda rows: {"x": torch.rand(len(rows))}, seed=3)
    batch = [((0, 4), {"row_id": 104}), ((0, 5), {})]
    first, second = collate(batch), collate(batch)
    assert torch.equal(first["inputs"]["x"], second["inputs"]["x"])
    assert first["rows"] == [104, 5]
    assert first["stream"] is None
    assert not torch.equal(first["inputs"]["x"], collate(batch[::-1])["inputs"]["x"])


def test_seeding_leaves_the_surrounding_random_state_alone():
    before = (random.getstate(), torch.random.get_rng_state())
    with seeded("key"):
        random.random()
        torch.rand(3)
    assert random.getstate() == before[0]
    assert torch.equal(torch.random.get_rng_state(), before[1])


def numbers(count=25):
    return [{"row_id": i} for i in range(count)]


def windows(count=25):
    return ShuffledWindows(numbers(count), seed=3, window=4)


class Plain(IterableDataset):
    """A stream that cannot say where it stands, and draws at random on its way."""

    def __iter__(self):
        for row in numbers():
            yield row | {"noise": random.random()}


def shuffled():
    """A stream of `datasets` with a shuffle buffer, of which its own state keeps nothing."""
    return Dataset.from_list(numbers()).to_iterable_dataset(num_shards=3).shuffle(seed=1, buffer_size=8)


def sharded():
    return Dataset.from_list(numbers()).to_iterable_dataset(num_shards=3)


STREAMS = {"windows": windows, "plain": Plain, "datasets": sharded, "datasets, shuffled": shuffled}


def taken(stream, start, stop, at_once=5):
    """Examples `start` to `stop` of a stream, as one process asks for them."""
    found = []
    for number in range(start, stop, at_once):
        found += [e for _, e in stream.__getitems__([(0, n) for n in range(number, min(number + at_once, stop))])]
    return [{k: v for k, v in example.items() if k != "__stream__"} for example in found]


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("stop", [5, 20, 25, 40, 50])
def test_a_stream_goes_on_where_it_was(make, stop):
    expected = taken(SeededStream(make(), 3), 0, 80)
    before = SeededStream(make(), 3)
    assert taken(before, 0, stop) == expected[:stop]
    after = SeededStream(make(), 3)
    after.load_state_dict(before.state_dict())
    assert taken(after, stop, 80) == expected[stop:]


def test_the_processes_of_a_stream_share_it_out():
    one = SeededStream(windows(), 3)
    everything = [e["row_id"] for e in taken(one, 0, 24)]
    other = SeededStream(windows(), 3)
    odd = [e["row_id"] for n in range(2, 24, 4) for e in taken(other, n, n + 2)]
    assert odd == [everything[n + i] for n in range(2, 24, 4) for i in range(2)]


def test_windows_hold_every_row_once_in_an_order_of_their_own():
    def rows_of_pass(number):
        made = windows()
        made.set_epoch(number)
        return [e["row_id"] for e in made]

    first = rows_of_pass(0)
    assert sorted(first) == list(range(25))
    assert first != list(range(25))
    assert first != rows_of_pass(1)


def test_windows_read_nothing_of_what_lies_behind():
    read = []

    class Watched(list):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    stream = ShuffledWindows(Watched(numbers(400)), seed=3, window=4)
    stream.set_epoch(0)
    stream.load_state_dict({"taken": 390})
    assert len(list(stream)) == 10
    assert len(read) <= 12


def test_an_empty_stream_is_said_to_be_empty():
    with pytest.raises(DataError, match="the stream is empty"):
        taken(SeededStream(ShuffledWindows([], seed=3), 3), 0, 1)
