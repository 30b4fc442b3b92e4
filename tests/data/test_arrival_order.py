"""The order of messages in a file: the same again from any place, through kills, and decided anew where it is lost."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from hogwild.data.arrival_order import RUN, UNKNOWN, ArrivalOrder, Run

RUNS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=6)


def rest(order: ArrivalOrder) -> list[int]:
    """Return the partition of each message that is given again."""
    found = []
    while (run := order.next) is not None:
        found += [run.partition] * run.many
        order.take(run.many)
    return found


@given(st.lists(st.tuples(RUNS, st.floats(0, 1), st.integers(0, 15), st.booleans()), max_size=8))
def test_it_gives_the_same_order_from_any_place_through_kills(attempts: list[tuple[list, float, int, bool]]) -> None:
    with TemporaryDirectory() as folder:
        path, given = Path(folder) / "order", list[int]()
        for runs, share, torn, forgets in attempts:
            order = ArrivalOrder(path)
            at = int(share * len(given))
            order.go_to(at)
            if forgets:
                if order.next is not None:
                    order.take(1)
                    at += 1
                order.forget_rest()
                given = given[:at]
            else:
                assert rest(order) == given[at:]
            ends = [0, 0, 0]
            for partition, many in runs:
                ends[partition] += many
                order.add([Run(partition, many, ends[partition])])
                given += [partition] * many
            with open(path, "ab") as file:
                file.write(b"x" * torn)  # a kill in the middle of a write
        assert rest(ArrivalOrder(path)) == given


def test_messages_whose_order_is_lost_keep_the_count(tmp_path: Path) -> None:
    order = ArrivalOrder(tmp_path / "order")
    order.add([Run(1, 3, 3)])
    order.go_to(10)
    order.add([Run(2, 1, 1)])
    again = ArrivalOrder(tmp_path / "order")
    assert rest(again) == [1] * 3 + [UNKNOWN] * 7 + [2]
    again.go_to(10)
    assert again.next == Run(2, 1, 1)


def test_a_run_that_goes_on_takes_no_more_room(tmp_path: Path) -> None:
    order = ArrivalOrder(tmp_path / "order")
    for end in range(1, 1000):
        order.add([Run(1, 1, end)])
    assert (tmp_path / "order").stat().st_size == RUN.itemsize
    assert ArrivalOrder(tmp_path / "order").next == Run(1, 999, 999)


def test_without_a_file_nothing_is_kept() -> None:
    order = ArrivalOrder(None)
    order.add([Run(1, 1, 1)])
    order.go_to(0)
    order.forget_rest()
    assert order.next is None
