import unittest

from layers import from_environment, merge


class MergeTest(unittest.TestCase):
    def test_mappings_are_merged(self) -> None:
        self.assertEqual(merge({"a": {"b": 1}}, {"a": {"c": 2}}), {"a": {"b": 1, "c": 2}})

    def test_lists_are_replaced(self) -> None:
        self.assertEqual(merge({"a": [1, 2]}, {"a": [3]}), {"a": [3]})

    def test_a_value_over_a_mapping(self) -> None:
        self.assertEqual(merge({"a": {"b": 1}}, {"a": 5}), {"a": 5})

    def test_nothing(self) -> None:
        self.assertEqual(merge(), {})


class EnvironmentTest(unittest.TestCase):
    def test_names_and_levels(self) -> None:
        layer = from_environment("APP", {"APP_SERVER__PORT": "8080", "APP_NAME": "x", "HOME": "/"})
        self.assertEqual(layer, {"server": {"port": 8080}, "name": "x"})

    def test_json_values(self) -> None:
        layer = from_environment("app", {"APP_A": "[1, 2]", "APP_B": "true", "APP_C": "1.5"})
        self.assertEqual(layer, {"a": [1, 2], "b": True, "c": 1.5})


if __name__ == "__main__":
    unittest.main()
