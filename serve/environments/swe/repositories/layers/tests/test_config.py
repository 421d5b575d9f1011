import unittest

from layers import Config, ConfigError, MissingKey


class ConfigTest(unittest.TestCase):
    def setUp(self) -> None:
        self.config = Config(
            {"server": {"host": "a", "port": 80}, "debug": "yes", "hosts": ["x", "y"]},
            {"server": {"port": 8080}, "url": "http://${server.host}:${server.port}/"},
        )

    def test_later_layers_win(self) -> None:
        self.assertEqual(self.config.get("server.port"), 8080)
        self.assertEqual(self.config.get("server.host"), "a")

    def test_a_place_in_a_list(self) -> None:
        self.assertEqual(self.config.get("hosts.1"), "y")

    def test_a_missing_key(self) -> None:
        with self.assertRaises(MissingKey):
            self.config.get("server.name")

    def test_a_default(self) -> None:
        self.assertEqual(self.config.get("server.name", "none"), "none")

    def test_references(self) -> None:
        self.assertEqual(self.config.get("url"), "http://a:8080/")

    def test_a_reference_to_nothing(self) -> None:
        with self.assertRaises(MissingKey):
            Config({"a": "${b}"}).get("a", "default")

    def test_true_and_false(self) -> None:
        self.assertIs(self.config.get_bool("debug"), True)
        self.assertIs(Config({"a": "off"}).get_bool("a"), False)

    def test_a_section(self) -> None:
        self.assertEqual(self.config.section("server").get("port"), 8080)

    def test_no_section(self) -> None:
        with self.assertRaises(ConfigError):
            self.config.section("debug")


if __name__ == "__main__":
    unittest.main()
