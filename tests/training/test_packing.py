"""Packed sequences: where tokens go, what position they have, and that nothing gets lost."""

from __future__ import annotations

from specbench.training.objectives.packing import CLEAN, NOISY, PROMPT, Sample, pack, unpack

FULL = Sample([1, 2, 3], [10, 11, 12, 13], [[20, 21, 22, 23]], 2)  # two blocks of two
CUT = Sample([4, 5], [30, 31, 32, 33, 34], [[40, 41, 42, 43, 44]], 3)  # a block of three, and one of two
SHORT = Sample([6], [50], [[60]], 4)
TWO = Sample([7, 8], [10, 11, 12], [[20, 21, 22], [30, 31, 32]], 2)  # two noisy streams


def test_the_layout_of_one_text() -> None:
    packed = pack([FULL])
    assert packed.ids[0].tolist() == [1, 2, 3, 20, 21, 10, 11, 22, 23, 12, 13]  # prompt k₀ l₀ k₁ l₁
    assert packed.positions[0].tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6, 5, 6]
    assert packed.stream[0].tolist() == [PROMPT] * 3 + [NOISY] * 2 + [CLEAN] * 2 + [NOISY] * 2 + [CLEAN] * 2
    assert packed.block[0].tolist() == [-1] * 3 + [0] * 4 + [1] * 4
    assert packed.sample[0].tolist() == [0] * 11
    assert packed.teacher[0].tolist() == [-1] * 3 + [5, 6, -1, -1, 9, 10, -1, -1]
    assert packed.following[0].tolist() == [1, 2, 5, 6, 9, 6, 9, 10, -1, 10, -1]
    assert packed.ids.shape[1] == FULL.size == 3 + 2 * 2 * 2  # P + 2 T n


def test_two_noisy_streams_learn_one_from_the_other() -> None:
    packed = pack([TWO])
    assert packed.ids[0].tolist() == [7, 8, 20, 21, 30, 31, 10, 11, 22, 32, 12]
    assert packed.stream[0].tolist() == [0, 0, 2, 2, 3, 3, 1, 1, 2, 3, 1]
    assert packed.teacher[0].tolist() == [-1, -1, 4, 5, 6, 7, -1, -1, 9, 10, -1]
    assert packed.following[0].tolist() == [1, 6, 7, 10, 7, 10, 7, 10, -1, -1, -1]


def test_positions_are_shared_and_following_is_the_next_of_the_text() -> None:
    packed = pack([FULL, CUT, SHORT, TWO], length=40)
    for row in range(len(packed.ids)):
        for column in (packed.sample[row] >= 0).nonzero()[:, 0].tolist():
            at = int(packed.teacher[row, column])
            if at >= 0:
                for what in (packed.positions, packed.block, packed.sample):
                    assert what[row, at] == what[row, column]
            after = int(packed.following[row, column])
            if after >= 0:
                assert packed.positions[row, after] == packed.positions[row, column] + 1
                assert packed.sample[row, after] == packed.sample[row, column]
                assert packed.stream[row, after] <= CLEAN


def test_round_trip() -> None:
    samples = [FULL, CUT, TWO, SHORT]
    found = unpack(pack(samples))
    assert found[:3] == samples[:3]
    assert found[3] == Sample([6], [50], [[60]], 1)  # its one block is as long as it is
    assert unpack(pack(samples, length=30, multiple=16)) == found


def test_samples_share_sequences_up_to_a_length() -> None:
    samples = [FULL, CUT, SHORT, TWO]  # 11, 12, 3 and 11 tokens
    packed = pack(samples, length=26)
    assert [sorted(row[row >= 0].unique().tolist()) for row in packed.sample] == [[0, 1, 2], [3]]
    assert pack(samples, length=1).ids.shape == (4, 12)
    assert pack(samples).ids.shape == (4, 12)
    filled = pack(samples, multiple=16)
    assert filled.ids.shape == (4, 16)
    rest = filled.sample < 0
    assert rest.sum() == 64 - sum(sample.size for sample in samples)
    assert filled.following[rest].eq(-1).all()
    assert filled.teacher[rest].eq(-1).all()
