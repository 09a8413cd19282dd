"""Which images may have files of the base that need not be read again."""

from waypoint.service.durable.keeping import _note_alike


def test_the_newest_image_of_the_last_four_branches() -> None:
    alike: dict[str, str] = {}
    for branch, image in zip("abacdeb", "1234567", strict=True):
        _note_alike(alike, branch, image)
    assert list(alike.items()) == [("c", "4"), ("d", "5"), ("e", "6"), ("b", "7")]
