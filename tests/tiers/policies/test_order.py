"""The queue under the policies: exact order, and many refused keys do not slow it down."""

from mooncask.tiers.policies.order import ASK_AGAIN_MAX, Order


def anything(key: int) -> bool:
    return True


def test_keys_leave_in_the_order_they_came() -> None:
    order = Order()
    for key in (5, 3, 9):
        order.append(key, None)
    order.append(5, None)
    assert [order.take(anything) for _ in range(4)] == [3, 9, 5, None]


def test_refused_keys_stay_in_front_of_those_behind_them() -> None:
    order = Order()
    for key in range(10):
        order.append(key, None)
    assert order.take(lambda key: key >= 5) == 5
    assert [order.take(anything) for _ in range(9)] == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_a_refused_key_that_is_used_goes_to_the_back() -> None:
    order = Order()
    for key in range(4):
        order.append(key, None)
    assert order.take(lambda key: key == 3) == 3
    order.append(0, None)
    assert [order.take(anything) for _ in range(3)] == [1, 2, 0]


def test_each_of_many_refused_keys_gets_its_turn_to_be_asked() -> None:
    order, refused = Order(), 10 * ASK_AGAIN_MAX
    for key in range(2 * refused):
        order.append(key, None)
    for _ in range(5):
        order.take(lambda key: key >= refused)
    freed = refused - 1
    taken = [order.take(lambda key: key >= refused or key == freed) for _ in range(11)]
    assert freed in taken


def test_a_parent_is_asked_first_after_its_child_left() -> None:
    order, count = Order(), 5 * ASK_AGAIN_MAX
    for key in range(count):
        order.append(key, key - 1 if key else None)
    assert order.take(lambda key: key == count - 1) == count - 1
    assert order.take(lambda key: key == count - 2) == count - 2


def test_none_is_only_answered_after_asking_every_key() -> None:
    order, count = Order(), 5 * ASK_AGAIN_MAX
    for key in range(count):
        order.append(key, None)
    asked: set[int] = set()

    def refuse(key: int) -> bool:
        asked.add(key)
        return False

    for _ in range(2):
        asked.clear()
        assert order.take(refuse, ask_all=True) is None
        assert asked == set(range(count))
