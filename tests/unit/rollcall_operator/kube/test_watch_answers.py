"""A watch keeps what the API server has answered: no older event takes its place, and what others
have changed is reported.
"""

from pathlib import Path

from tests.unit.rollcall_operator.kube.api_server import pod
from tests.unit.rollcall_operator.kube.watched_pods import Watched


async def test_the_event_of_what_was_answered_is_no_difference(tmp_path: Path) -> None:
    async with Watched().run(tmp_path) as watched:
        assert watched.watch.keep_answer(pod("a", 9)) == ("a@1", "a@9")
        assert watched.watch.keep_answer(pod("c", 10)) == (None, "c@10")
        assert watched.differences == []
        watched.server.send("MODIFIED", pod("a", 9))
        watched.server.send("ADDED", pod("c", 10))
        assert await watched.reaches(10) == []
        watched.server.send("MODIFIED", pod("a", 11))
        watched.server.send("DELETED", pod("c", 12))
        assert await watched.reaches(12) == [("a@9", "a@11"), ("c@10", None)]


async def test_what_others_have_changed_before_it_is_reported_with_their_event(
    tmp_path: Path,
) -> None:
    async with Watched().run(tmp_path) as watched:
        watched.watch.keep_answer(pod("a", 9))
        watched.watch.keep_answer(pod("a", 11))
        watched.server.send("MODIFIED", pod("a", 9))
        assert await watched.reaches(9) == []
        watched.server.send("MODIFIED", pod("a", 10))
        assert await watched.reaches(10) == [("a@1", "a@11")]
        watched.server.send("MODIFIED", pod("a", 11))
        assert await watched.reaches(11) == []


async def test_an_answer_that_the_watch_has_overtaken_is_not_taken(tmp_path: Path) -> None:
    async with Watched().run(tmp_path) as watched:
        watched.server.send("DELETED", pod("a", 12))
        assert await watched.reaches(12) == [("a@1", None)]
        assert watched.watch.keep_answer(pod("a", 9)) is None
        assert watched.watch.keep_answer(pod("b", 14)) == ("b@2", "b@14")
        assert watched.watch.keep_answer(pod("b", 13)) is None
        watched.server.send("MODIFIED", pod("b", 15))
        assert await watched.reaches(15) == [("b@14", "b@15")]


async def test_the_deletion_of_a_former_object_leaves_the_one_of_the_same_name(
    tmp_path: Path,
) -> None:
    async with Watched().run(tmp_path) as watched:
        watched.watch.keep_answer(pod("a", 9))
        watched.server.send("DELETED", pod("a", 8))
        assert await watched.reaches(8) == [("a@1", "a@9")]
        watched.server.send("ADDED", pod("a", 9))
        watched.server.send("DELETED", pod("a", 10))
        assert await watched.reaches(10) == [("a@9", None)]


async def test_a_list_takes_nothing_back_that_is_newer_than_it(tmp_path: Path) -> None:
    async with Watched().run(tmp_path) as watched:
        watched.watch.keep_answer(pod("a", 21))
        watched.watch.keep_answer(pod("c", 22))
        # Others may have changed what was answered: their events are lost, so it is reported.
        assert set(await watched.lists_again(20, pod("a", 1), pod("b", 2))) == {
            ("a@1", "a@21"),
            (None, "c@22"),
            ("b@2", "b@2"),
        }
        watched.server.send("DELETED", pod("c", 23))
        assert await watched.reaches(23) == [("c@22", None)]


async def test_a_list_that_is_newer_takes_the_place_of_what_was_answered(tmp_path: Path) -> None:
    async with Watched().run(tmp_path) as watched:
        watched.watch.keep_answer(pod("a", 9))
        watched.watch.keep_answer(pod("b", 10))
        watched.watch.keep_answer(pod("c", 11))
        reported = await watched.lists_again(20, pod("a", 9), pod("b", 12))
        assert reported[-2:] == [("b@10", "b@12"), ("c@11", None)]
        watched.server.send("MODIFIED", pod("a", 21))
        assert await watched.reaches(21) == [("a@9", "a@21")]
