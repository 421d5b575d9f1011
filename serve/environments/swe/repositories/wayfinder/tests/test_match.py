import unittest

from wayfinder import Match, MethodNotAllowed, NotFound, Router


class MatchTest(unittest.TestCase):
    def setUp(self) -> None:
        self.router = Router()
        self.router.add("/", name="home")
        self.router.add("/users", name="users", methods=("GET", "POST"))
        self.router.add("/users/<int:id>", name="user")
        self.router.add("/files/<path:file>", name="file")
        self.router.add("/tags/<tag>", name="tag")

    def test_the_root(self) -> None:
        self.assertEqual(self.router.match("/"), Match("home", {}))

    def test_a_number(self) -> None:
        self.assertEqual(self.router.match("/users/7").values, {"id": 7})

    def test_a_text_is_no_number(self) -> None:
        with self.assertRaises(NotFound):
            self.router.match("/users/seven")

    def test_a_path_has_slashes(self) -> None:
        self.assertEqual(self.router.match("/files/a/b.txt").values, {"file": "a/b.txt"})

    def test_a_segment_has_none(self) -> None:
        with self.assertRaises(NotFound):
            self.router.match("/tags/a/b")

    def test_the_query_is_no_part_of_the_path(self) -> None:
        self.assertEqual(self.router.match("/users?page=2").name, "users")

    def test_methods(self) -> None:
        self.assertEqual(self.router.match("/users", "post").name, "users")

    def test_a_slash_at_the_end(self) -> None:
        self.assertEqual(self.router.match("/users/").name, "users")

    def test_a_dot_is_a_dot(self) -> None:
        self.router.add("/robots.txt", name="robots")
        with self.assertRaises(NotFound):
            self.router.match("/robotsxtxt")

    def test_no_such_method(self) -> None:
        with self.assertRaises(MethodNotAllowed):
            self.router.match("/users", "DELETE")
