from dojang.track.multi_tracker import MultiTracker


class Remembers:
    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def metrics(self, step, values) -> None:
        self.seen.append(("metrics", step, values))

    def groups(self, step, split, groups) -> None:
        self.seen.append(("groups", step, split, groups))

    def token_values(self, step, values) -> None:
        self.seen.append(("token_values", step, values))

    def close(self) -> None:
        self.seen.append(("close",))


def test_all_trackers_get_every_call() -> None:
    both = [Remembers(), Remembers()]
    tracker = MultiTracker(both)
    tracker.metrics(1, {"a": 2.0})
    tracker.groups(1, "train", [])
    tracker.token_values(1, [])
    tracker.close()
    for each in both:
        calls = [("metrics", 1, {"a": 2.0}), ("groups", 1, "train", []), ("token_values", 1, []), ("close",)]
        assert each.seen == calls
