"""The order of rows and of streams, on which exact resume relies."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader, IterableDataset

from params import CheckpointError, DataError, RecipeError
from params.schema import Launch
from trainer.data.loading import ResumableBatchSampler, SeededDataset, collate_with_seed
from trainer.data.order import EpochOrder, GlobalBatchShard, RowTraits
from trainer.data.randomness import seeded
from trainer.data.streaming import ShuffledWindows, StreamByPosition
from trainer.loop.batch import micro_batch_and_accumulation


@pytest.fixture(params=["stored", "computed"])
def permutation(request, monkeypatch):
    """The order of few rows, and that of very many, whose permutation does not fit into memory."""
    if request.param == "computed":
        monkeypatch.setattr("trainer.data.order._STORED", 5)


def order(rows=50, *, seed=3, batch=8, epoch=0, lengths=None):
    made = EpochOrder(rows, seed=seed, global_batch_size=batch, lengths=lengths)
    found = made.rows(epoch)[:].tolist()
    assert len(found) == made.batches * batch
    assert made.rows(epoch)[5:21].tolist() == found[5:21]
    return found


def training_data(shard, rows=50):
    """The rows of an epoch, or those of a stream if there are none."""
    source = DataLoader(range(rows), shuffle=True) if rows else DataLoader(Plain())
    return ResumableBatchSampler(source, shard, seed=3)


def steps_of(processes, *, rows=50, batch=8, max_micro_batch=2, at=(0, 0)):
    """The rows of each optimizer step from a position to the end of its epoch, over all processes."""
    micro_batch, accumulation = micro_batch_and_accumulation(
        batch, Launch(num_processes=processes, micro_batch_size=max_micro_batch)
    )
    steps = []
    for process in range(processes):
        sampler = training_data(GlobalBatchShard(micro_batch, accumulation, processes, process), rows)
        order = {"epoch": at[0], "batch": at[1], "global_batch_size": batch}
        sampler.load_state_dict({"order": order, "stream": None})
        batches = list(sampler)
        assert len(batches) == len(sampler)
        assert batches[: sampler.micro_batches_done] == [[]] * sampler.micro_batches_done
        rest = batches[sampler.micro_batches_done :]
        assert all(len(keys) == micro_batch for keys in rest)
        steps.append([rest[i : i + accumulation] for i in range(0, len(rest), accumulation)])
    return [
        [t for micro in zip(*step, strict=True) for keys in micro for t in keys] for step in zip(*steps, strict=True)
    ]


@pytest.mark.usefixtures("permutation")
def test_epoch_has_whole_global_batches_and_unique_rows():
    assert len(order()) == 48
    assert len(set(order())) == 48
    assert len(order(rows=48)) == 48
    assert order(rows=7) == []


@pytest.mark.usefixtures("permutation")
def test_order_depends_only_on_seed_and_epoch():
    assert order() == order()
    assert order(epoch=1) != order(epoch=0)
    assert order(seed=4) != order(seed=3)
    assert order(epoch=2, seed=3) != order(epoch=3, seed=2)
    left_out = [set(range(50)) - set(order(epoch=e)) for e in range(4)]
    assert len(set(map(frozenset, left_out))) > 1, "each epoch leaves out other rows"


@pytest.mark.usefixtures("permutation")
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_steps_do_not_depend_on_the_number_of_processes(processes):
    expected = [[(2, row) for row in order(epoch=2)[i : i + 8]] for i in range(0, 48, 8)]
    assert steps_of(processes, at=(2, 0)) == expected
    assert steps_of(processes, at=(2, 4)) == expected[4:]


@pytest.mark.usefixtures("permutation")
def test_position_advances_into_the_next_epoch():
    sampler = training_data(GlobalBatchShard(4, 2, 1, 0))
    for _ in range(7):
        sampler.advance()
    assert sampler.state_dict()["order"] == {"epoch": 1, "batch": 1, "global_batch_size": 8}
    assert sampler.micro_batches_done == 2


def test_position_of_another_global_batch_is_refused():
    sampler = training_data(GlobalBatchShard(4, 2, 1, 0))
    with pytest.raises(CheckpointError, match="written with a global batch of 16 sequences, this run has 8"):
        sampler.load_state_dict({"order": {"epoch": 0, "batch": 1, "global_batch_size": 16}, "stream": None})


def test_grouping_by_length_makes_similar_batches_of_all_rows():
    lengths = [i * 7919 % 100 for i in range(1000)]
    found = order(1000, lengths=lengths)
    assert sorted(found) == list(range(1000))
    spreads = [max(lengths[i] for i in b) - min(lengths[i] for i in b) for b in zip(*[iter(found)] * 8, strict=True)]
    assert max(spreads) < 10
    firsts = [lengths[i] for i in found[::8]]
    assert firsts != sorted(firsts, reverse=True), "the batches are in random order"
    assert found == order(1000, lengths=lengths)
    assert found != order(1000, lengths=lengths, epoch=1)


def test_sampler_of_a_stream_has_no_length():
    sampler = training_data(GlobalBatchShard(2, 3, 2, 1), rows=0)
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


def test_augmentation_depends_only_on_epoch_and_row():
    examples = SeededDataset(Noisy(), seed=3)
    together = dict(examples.__getitems__([(0, 4), (0, 5)]))
    alone = dict(examples.__getitems__([(0, 5)]))
    assert together[0, 5] == alone[0, 5]
    assert dict(examples.__getitems__([(1, 5)]))[1, 5] != alone[0, 5]
    assert dict(SeededDataset(Noisy(), seed=4).__getitems__([(0, 5)])) != alone


def draw(example):
    return example | {"drawn": (random.random(), float(torch.rand(())))}


@pytest.mark.parametrize("rows", [50, 0], ids=["rows", "a stream"])
def test_changes_of_an_example_depend_only_on_seed_epoch_and_sequence(rows):
    def drawn(shard, *, seed=3, epoch=0):
        source = DataLoader(numbers(rows) if rows else Plain(), shuffle=True if rows else None, collate_fn=list)
        sampler = ResumableBatchSampler(source, shard, seed=seed, augment=draw)
        sampler.epoch = epoch
        found = [next(iter(sampler.loader))["inputs"]] if epoch else []
        batches = iter(sampler.loader)
        found += [next(batches)["inputs"] for _ in range(3 * shard.accumulation)]
        return {example["row_id"]: example["drawn"] for batch in found for example in batch}

    whole = drawn(GlobalBatchShard(8, 1, 1, 0))
    assert len(set(whole.values())) == len(whole) == 24
    parts = drawn(GlobalBatchShard(2, 2, 2, 0)) | drawn(GlobalBatchShard(2, 2, 2, 1))
    assert parts == whole
    others = drawn(GlobalBatchShard(8, 1, 1, 0), seed=4)
    assert not any(value == whole.get(row) for row, value in others.items())
    if rows:
        later = drawn(GlobalBatchShard(8, 1, 1, 0), epoch=1)
        assert not any(value == whole.get(row) for row, value in later.items())


def test_collator_randomness_depends_only_on_its_rows():
    collate = partial(collate_with_seed, lambda rows: {"x": torch.rand(len(rows))}, 3)
    batch = [((0, 4), {"row_id": 104}), ((0, 5), {})]
    first, second = collate(batch), collate(batch)
    assert torch.equal(first["inputs"]["x"], second["inputs"]["x"])
    assert first["rows"] == [104, 5]
    assert first["stream"] is None
    assert not torch.equal(first["inputs"]["x"], collate(batch[::-1])["inputs"]["x"])


def test_seeded_restores_the_random_state():
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
    """A random stream without a state."""

    def __iter__(self):
        for row in numbers():
            yield row | {"noise": random.random()}


def shuffled():
    """A stream of `datasets` with a shuffle buffer, which its state does not include."""
    return Dataset.from_list(numbers()).to_iterable_dataset(num_shards=3).shuffle(seed=1, buffer_size=8)


def sharded():
    return Dataset.from_list(numbers()).to_iterable_dataset(num_shards=3)


STREAMS = {"windows": windows, "plain": Plain, "datasets": sharded, "datasets, shuffled": shuffled}


def read(stream, start, stop, at_once=5):
    """Examples `start` to `stop` of a stream, as one process reads them."""
    found = []
    for number in range(start, stop, at_once):
        found += [e for _, e in stream.__getitems__([(0, n) for n in range(number, min(number + at_once, stop))])]
    return [{k: v for k, v in example.items() if k != "__stream__"} for example in found]


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("stop", [5, 20, 25, 40, 50])
def test_stream_resumes_at_its_position(make, stop):
    expected = read(StreamByPosition(make(), 3), 0, 80)
    before = StreamByPosition(make(), 3)
    assert read(before, 0, stop) == expected[:stop]
    after = StreamByPosition(make(), 3)
    after.load_state_dict(before.state_dict())
    assert read(after, stop, 80) == expected[stop:]


def test_processes_share_a_stream():
    one = StreamByPosition(windows(), 3)
    everything = [e["row_id"] for e in read(one, 0, 24)]
    shared = StreamByPosition(windows(), 3)
    second_process = [e["row_id"] for n in range(2, 24, 4) for e in read(shared, n, n + 2)]
    assert second_process == [everything[n + i] for n in range(2, 24, 4) for i in range(2)]


def test_shuffled_windows_yield_every_row_once():
    def rows_of_pass(number):
        made = windows()
        made.set_epoch(number)
        return [e["row_id"] for e in made]

    first = rows_of_pass(0)
    assert sorted(first) == list(range(25))
    assert first != list(range(25))
    assert first != rows_of_pass(1)


def test_resumed_windows_read_no_earlier_rows():
    indices = []

    class Watched(list):
        def __getitem__(self, index):
            indices.append(index)
            return super().__getitem__(index)

    stream = ShuffledWindows(Watched(numbers(400)), seed=3, window=4)
    stream.set_epoch(0)
    stream.load_state_dict({"taken": 390})
    assert len(list(stream)) == 10
    assert len(indices) <= 12


def test_empty_stream_is_an_error():
    with pytest.raises(DataError, match="the stream is empty"):
        read(StreamByPosition(ShuffledWindows([], seed=3), 3), 0, 1)


class TestWeights:
    """Rows of sources that an epoch has more often or more seldom than once."""

    WEIGHTS = ((30, 1.0), (20, 2.5), (12, 0.25), (8, 1.0))

    def made(self, batch=4, **settings):
        return EpochOrder(70, seed=3, global_batch_size=batch, weights=self.WEIGHTS, **settings)

    @staticmethod
    def counts(order, epochs):
        found = torch.zeros(70, dtype=torch.int64)
        for epoch in epochs:
            found += torch.bincount(order.rows(epoch)[:], minlength=70)
        return found

    def test_few_rows_of_a_small_weight_are_learned_from_too(self):
        order = EpochOrder(43, seed=3, global_batch_size=1, weights=((40, 1.0), (3, 0.1)))
        assert order.batches == 41
        found = sum(torch.bincount(order.rows(epoch)[:], minlength=43) for epoch in range(3))
        assert found.tolist() == [3] * 40 + [1] * 3

    def test_each_row_comes_as_often_as_its_weight_says(self):
        order = self.made(batch=1)
        assert order.batches == 30 + 50 + 3 + 8
        once = self.counts(order, [0])
        assert once[:30].tolist() == [1] * 30
        assert sorted(once[30:50].tolist()) == [2] * 10 + [3] * 10
        assert sorted(once[50:62].tolist()) == [0] * 9 + [1] * 3
        several = self.counts(order, range(4))  # a share goes on where it ended
        assert several[30:50].tolist() == [10] * 20
        assert several[50:62].tolist() == [1] * 12

    def test_it_follows_from_seed_and_epoch_and_is_read_by_slices(self, permutation):
        order = self.made()
        found = order.rows(1)[:].tolist()
        assert found == self.made().rows(1)[:].tolist()
        assert found != order.rows(2)[:].tolist()
        assert order.rows(1)[7:23].tolist() == found[7:23]

    def test_batches_have_similar_lengths(self):
        lengths = [i % 7 + 1 for i in range(70)]
        order = self.made(lengths=lengths)
        batches = order.rows(0)[:].reshape(-1, 4).tolist()
        spread = [max(lengths[i] for i in one) - min(lengths[i] for i in one) for one in batches]
        assert sum(spread) <= 7

    @pytest.mark.parametrize("processes", [1, 2])
    def test_processes_share_the_same_steps(self, processes):
        source = DataLoader(range(70), shuffle=True)
        traits = RowTraits(weights=self.WEIGHTS)
        samplers = [
            ResumableBatchSampler(
                source, GlobalBatchShard(2, 4 // processes // 2, processes, one), seed=3, traits=traits
            )
            for one in range(processes)
        ]
        for one in samplers:
            one.load_state_dict({"order": {"epoch": 1, "batch": 5, "global_batch_size": 4}, "stream": None})
        found = [[[row for _, row in keys] for keys in one][5 * 4 // processes // 2 :] for one in samplers]
        steps = [row for together in zip(*found, strict=True) for micro in together for row in micro]
        assert steps == self.made().rows(1)[20:].tolist()

    def test_a_sampler_of_ones_own_is_refused(self):
        source = DataLoader(range(70), sampler=torch.utils.data.SequentialSampler(range(70)))
        with pytest.raises(RecipeError, match=r"training.trainer: its sampler chooses the rows"):
            ResumableBatchSampler(source, GlobalBatchShard(2, 2, 1, 0), seed=3, traits=RowTraits(weights=self.WEIGHTS))
