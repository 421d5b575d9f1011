import unittest

from wayfinder import BuildError, Router


class BuildTest(unittest.TestCase):
    def setUp(self) -> None:
        self.router = Router()
        self.router.add("/users/<int:id>", name="user")
        self.router.add("/files/<path:file>", name="file")

    def test_a_path(self) -> None:
        self.assertEqual(self.router.build("user", id=7), "/users/7")

    def test_a_query(self) -> None:
        self.assertEqual(self.router.build("user", id=7, page=2), "/users/7?page=2")

    def test_slashes_stay_in_a_path(self) -> None:
        self.assertEqual(self.router.build("file", file="a/b"), "/files/a/b")

    def test_a_missing_value(self) -> None:
        with self.assertRaises(BuildError):
            self.router.build("user")

    def test_no_such_rule(self) -> None:
        with self.assertRaises(BuildError):
            self.router.build("nothing")

    def test_a_value_that_does_not_fit(self) -> None:
        with self.assertRaises(BuildError):
            self.router.build("user", id="x")
