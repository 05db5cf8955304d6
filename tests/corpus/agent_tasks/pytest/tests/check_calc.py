from calc import add


def test_add():
    assert add(1, 2) == 3
    assert add(123456789, 987654321) == 1111111110
